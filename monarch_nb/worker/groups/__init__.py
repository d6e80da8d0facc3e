"""Process groups of torch.distributed on a rank: made, waited for, broken, made again."""
