"""Parameter-efficient fine-tuning: which hidden states are changed, how, and where (He et al. 2022, table 1).

settings     LoRA, bottleneck adapters, prefix tuning, BitFit, MAM
modules      low-rank updates of linear layers; bottlenecks after or beside a block; learned keys and values
apply        adding one of them to a network; what is trained, saved, loaded and merged
hf           LoRA and prefixes in the format of the library `peft`
"""
