// The functions of NVIDIA's libraries, in tables. Each library is opened when somebody asks for it
// first, once for the process, and stays.
#pragma once

#include "api.h"
#include "library.h"
#include "without.h"

namespace piper::cuda {

template <class Table>
struct Opened {
  Table functions;
  std::string path, version;  // "13.0", "9.19.0"
};

// Gives a library's name for people, the files that it may be, its functions and its version.
template <class Table>
struct About;
template <>
struct About<Driver> {
  static constexpr const char* kName = "driver";
  static constexpr const char* kFiles[] = {"libcuda.so.1"};
};
template <>
struct About<Nvrtc> {
  static constexpr const char* kName = "NVRTC";
  static constexpr const char* kFiles[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
  // NVRTC opens this one by its bare name when it compiles, and has no path of its own to find it.
  static constexpr const char* kBeside = "libnvrtc-builtins.so.";
};
template <>
struct About<CublasLt> {
  static constexpr const char* kName = "cuBLASLt";
  static constexpr const char* kFiles[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
};
template <>
struct About<Cudnn> {
  static constexpr const char* kName = "cuDNN";
  static constexpr const char* kFiles[] = {"libcudnn.so.9"};
};
template <>
struct About<Nccl> {
  static constexpr const char* kName = "NCCL";
  static constexpr const char* kFiles[] = {"libnccl.so.2"};
};

// Gives the switch of PIPER_CUDA_WITHOUT that a table of functions has; null: none.
template <class Table>
inline constexpr bool Without::*kSwitch = nullptr;
template <>
inline constexpr bool Without::*kSwitch<Cudnn> = &Without::cudnn;
template <>
inline constexpr bool Without::*kSwitch<Green> = &Without::green;
template <>
inline constexpr bool Without::*kSwitch<NcclWindows> = &Without::windows;

// Looks for it again. `path`: of the file that was found, also where that is no use.
template <class Table>
Result<Opened<Table>> open_anew(const Folders& folders, std::string& path);
// Opens it once for the process. The error says what was looked for and where, or that it is
// switched off.
template <class Table>
Result<const Opened<Table>*> opened();
// These return a table, or null if the driver or NCCL lacks it or it is switched off.
const Green* green_of_driver();
const NcclWindows* windows_of_nccl();

// Returns what a call of the driver says that did not succeed: "cuMemCreate: CUDA_ERROR_…: …".
Error failed_call(const Driver& driver, const char* call, int code);
inline Status checked(const Driver& driver, const char* call, int code) {
  if (code == 0) return ok_status();
  return failed_call(driver, call, code);
}
// Returns the error of a call that does not succeed.
#define PIPER_CU(driver, call, ...) \
  PIPER_TRY(::piper::cuda::checked(driver, #call, (driver).call(__VA_ARGS__)))

}  // namespace piper::cuda
