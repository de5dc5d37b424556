"""Hugging Face models: the same networks under the tensor names and configurations of `transformers`.

    family       what a family says of itself, and the translation that follows from it
    families     all families; choosing one for an import or an export
    bert, roberta, modernbert, gpt2, ...   their tables; bert also has DistilBERT and ELECTRA
    names        tables of tensor names, fused and transposed layouts
    config_json  keys of config.json and our fields
    heads        which network carries a head, how transformers calls it, and the part that is exported
    directory    reading and writing model directories

`transformers` itself is not needed.
"""
