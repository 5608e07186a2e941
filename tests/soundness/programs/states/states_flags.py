# insert: b.mkldnn.enabled = False
# insert: b.cudnn.benchmark = True
b = torch.backends
def f(x):
    x = x * 2 if b.mkldnn.enabled else x * 3
    x = x + 1 if b.cudnn.benchmark else x + 2
    return x
