"""Parameter-efficient fine-tuning: which hidden states are changed, how, and where (He et al. 2022, table 1).

settings     LoRA, bottleneck adapters, prefix tuning, BitFit, MAM
lora         low-rank updates of linear layers
adapters     bottlenecks after or beside a sub-layer
prefix       learned keys and values before those of the text
apply        adding one of them to a network; what is trained, saved, loaded and merged
hf           LoRA and prefixes in the format of the library `peft`
"""
