# edit: zeros(2, 3, 4, 4) => zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
# edit: zeros(2, 3, 4, 4) => zeros(3, 3, 4, 4)[1:]
# edit: zeros(2, 3, 4, 4) => zeros(2, 4, 3, 4).transpose(1, 2)
T = torch.zeros(2, 3, 4, 4)
def f(x):
    x = x * 2 if T.is_contiguous() else x * 3
    x = x + 1 if T.is_contiguous(memory_format=torch.channels_last) else x + 2
    return x + T.storage_offset() + T.untyped_storage().nbytes() / 1000
