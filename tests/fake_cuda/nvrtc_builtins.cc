// The library that the faked NVRTC asks the loader for when it compiles (nvrtc.cc).
extern "C" int fake_nvrtc_builtins() { return 0; }
