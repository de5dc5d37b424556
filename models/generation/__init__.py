"""Writing text: what a decoder or an encoder-decoder continues with.

    config         GenerationConfig: how to search, how long, which tokens are not allowed
    generate       generate(): the one call
    constraints    lengths, forced and suppressed tokens, repeated n-grams, repetition penalty
    reader         a network as generation sees it: it reads tokens and scores what follows
    rows           every row by itself, token after token; the most probable one, unless it is drawn
    sampling       a token drawn at random: temperature, top-k, top-p
    beam           beam search

Members are imported from their modules.
"""
