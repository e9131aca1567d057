"""The baseline beside the methods: word counts and a linear model, without a pretrained one."""
