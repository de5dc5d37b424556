"""Networks in plain PyTorch, and their Hugging Face directories.

    config, fields       the shape of a network; what the fields of all configurations allow
    transformer          one layer, the stack of layers, and the choice of the attention kernel
    attention, embeddings, functional    parts of a layer, with the cache of keys and values; positions; norms, dropout
    layout               places of the tokens of a batch: packed, padded, cached
    visibility           which tokens see each other
    stacks               the encoder, the decoder, and how a text is read with the stacks of any kind of network
    heads, losses        token prediction, pairs, classification; the chunked cross-entropy
    language_models      masked, causal, and sequence-to-sequence
    span_boundary, electra, distillation    the other networks of pre-training
    classifiers          networks of fine-tuning: texts, tokens, choices, answers inside a text
    features             hidden states of all layers, and heads on frozen features
    elmo                 ELMo: characters, biLSTM, scalar mix
    generation           greedy, beam search, sampling
    peft                 LoRA, adapters, prefix tuning, BitFit and their union
    initialization       weights as a pure function of (seed, parameter name)
    weights              counting, checking and grouping parameters
    hf                   reading and writing Hugging Face models

Members are imported from their modules, so that `models.config` costs nothing but the standard library.
"""
