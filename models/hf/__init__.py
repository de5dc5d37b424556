"""Hugging Face models: the same networks under the tensor names and configurations of `transformers`.

    roberta      state dicts and configurations of RoBERTa and RoBERTa-PreLayerNorm
    directory    reading and writing model directories

`transformers` itself is not needed.
"""
