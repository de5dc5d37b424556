"""Networks in plain PyTorch, and their Hugging Face directories.

    config               the shape of a network
    transformer          one layer, and the stack of layers
    attention, positions, functional, embeddings    parts of a layer; norms and dropout
    layout, side_by_side places of the tokens of a batch: packed, padded, cached
    visibility, backends which tokens see each other, and the attention kernel
    encoder, decoder, sequence_to_sequence       the encoder, the decoder, and both
    heads, losses        token prediction, pairs, classification; the chunked cross-entropy
    masked_language_model, causal_language_model, span_boundary, electra, distillation    networks of pre-training
    stacks               the stacks of any kind of network, and how a text is read with them
    classifiers          networks of fine-tuning: texts, tokens, choices, answers inside a text
    features             hidden states of all layers, and heads on frozen features
    elmo                 ELMo: characters, biLSTM, scalar mix
    generation, cache    greedy, beam search, sampling; keys and values already computed
    peft                 LoRA, adapters, prefix tuning, BitFit and their union
    initialization       weights as a pure function of (seed, parameter name)
    weights              counting, checking and grouping parameters
    hf                   reading and writing Hugging Face models

Members are imported from their modules, so that `models.config` costs nothing but the standard library.
"""
