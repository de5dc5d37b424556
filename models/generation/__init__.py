"""Writing text: what a decoder or an encoder-decoder continues with.

    config         GenerationConfig: how to search, how long, which tokens are not allowed
    generate       generate(): the one call
    reader         a network as generation sees it: it reads tokens and scores what follows
    sampling       every row by itself, token after token: constraints (lengths, forced and suppressed tokens, repeated
                   n-grams, repetition penalty), and the most probable token or one drawn (temperature, top-k, top-p)
    beam           beam search

Members are imported from their modules.
"""
