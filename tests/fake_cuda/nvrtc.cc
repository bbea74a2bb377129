// An NVRTC for tests that says its version.
extern "C" int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 7;
  return 0;
}
