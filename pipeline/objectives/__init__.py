"""Training objectives, one file each; `base.Objective` says what a file offers, and `registry` names them all.

Encoders: mlm (with nsp), span (SpanBERT), rtd (ELECTRA), distill. Decoders: clm, prefix_lm. Encoder-decoders:
bart_denoising, mbart_denoising, t5_span_corruption, ul2_mixture_of_denoisers. ELMo: bilm.
"""
