"""Hugging Face models: the same networks under the tensor names and configurations of `transformers`.

    family       what a family says of itself, and the translation that follows from it
    families     all families; choosing one for an import or an export
    bert, distilbert, roberta, electra, modernbert, ...   one family each: tables
    names        tables of tensor names, fused and transposed layouts
    config_json  keys of config.json and our fields
    heads        the heads that networks have
    networks     heads: which network carries one, and how transformers calls it
    parts        the exported part of a pre-training network
    directory    reading and writing model directories

`transformers` itself is not needed.
"""
