"""Probing: what can be read from the hidden states of a network, without training it.

features     hidden states of the words of texts, from every layer of any network
neighbors    the occurrences of a word that a network sees as most alike
config       the settings of probes
examples     words and pairs of words with their labels, and control tasks
probes       linear and small non-linear classifiers on hidden states
run          a task, probed on every layer
page         accuracy by layer as a page with a plot
"""
