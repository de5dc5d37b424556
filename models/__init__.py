"""Networks in plain PyTorch: embeddings, attention, Transformer stacks, heads, and Hugging Face export.

    config               TransformerConfig: the shape of one network
    presets              the published sizes (RoBERTa base and large)
    segments             packed rows: which tokens belong together, and their positions
    embeddings           token and position embeddings
    attention            multi-head self-attention
    transformer          one layer, and the stack of layers
    encoder              the bidirectional encoder (RoBERTa)
    heads                masked-token prediction, sequence classification
    masked_language_model    encoder with the masked-token head
    sequence_classifier      encoder with the classification head
    initialization       weights as a pure function of (seed, parameter name)
    weights              counting, checking and transferring parameters
    hf                   reading and writing Hugging Face models

Members are imported from their modules, so that `models.config` costs nothing but the standard library.
"""
