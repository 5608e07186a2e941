# insert: c.enable_flash_sdp(False)
# insert: c.enable_mem_efficient_sdp(False)
# insert: c.enable_cudnn_sdp(False)
c = torch.backends.cuda
def f(x):
    x = x * 2 if c.flash_sdp_enabled() else x * 3
    x = x + 1 if c.mem_efficient_sdp_enabled() else x + 2
    return x * 5 if c.cudnn_sdp_enabled() else x
