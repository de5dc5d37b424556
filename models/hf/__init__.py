"""Hugging Face models: the same networks under the tensor names and configurations of `transformers`.

    family       the interface of a family: from_hf, to_hf, obstacles
    families     all families; choosing one for an import or an export
    bert, roberta, electra, modernbert, ...   one family each
    names        tables of tensor names, fused and transposed layouts
    networks     heads: which network carries one, and how transformers calls it
    parts        the exported part of a pre-training network
    directory    reading and writing model directories

`transformers` itself is not needed.
"""
