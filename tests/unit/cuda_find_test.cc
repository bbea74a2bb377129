// The search for NVIDIA's libraries, on libraries made for it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "folder.h"
#include "libraries.h"
#include "piper/devices/cuda.h"
#include "shell.h"

namespace piper {
namespace {

namespace fs = std::filesystem;
const fs::path kFakes = PIPER_FAKE_CUDA;

class FindCuda : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"PIPER_CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "PIPER_CUDA_WITHOUT",
          "FAKE_CUDA_CAPABILITY", "FAKE_CUDA_INIT", "FAKE_CUDA_DEVICES"})
      unsetenv(name);
  }
  // A folder of libraries: copies of the fakes under the names that are looked for.
  fs::path folder(const std::string& name) {
    const fs::path made = fs::path(folder_.path()) / name;
    fs::create_directories(made);
    return made;
  }
  void copy(const char* fake, const fs::path& to) { fs::copy_file(kFakes / fake, to); }
  static const CudaLibrary& library(const CudaMachine& machine, const std::string& name) {
    for (const CudaLibrary& one : machine.libraries)
      if (one.name == name) return one;
    ADD_FAILURE() << "no library " << name;
    return machine.libraries[0];
  }

  Folder folder_;
};

TEST_F(FindCuda, DevicesOfADriver) {
  const fs::path here = folder("driver");
  copy("fake_cuda.so", here / "libcuda.so.1");
  setenv("PIPER_CUDA_PATH", here.c_str(), 1);
  const CudaMachine machine = find_cuda();
  EXPECT_EQ(machine.problem, "");
  ASSERT_EQ(machine.devices.size(), 2u);
  EXPECT_EQ(library(machine, "driver").version, "CUDA 13.0");
  EXPECT_EQ(library(machine, "driver").path, here / "libcuda.so.1");
  const std::string text = to_string(machine);
  EXPECT_EQ(text.substr(0, text.find("        driver")),
            "cuda:0  Fake H100, compute capability 9.0, 132 multiprocessors, 80.0 GiB\n"
            "cuda:1  Fake H100, compute capability 9.0, 132 multiprocessors, 80.0 GiB\n");
}

// Job scripts of other systems ask for one way to a device, on which two ranks wait for each other.
TEST_F(FindCuda, StreamsHaveWaysOfTheirOwnWhateverTheEnvironmentSays) {
  setenv("PIPER_CUDA_PATH", (kFakes / "all").c_str(), 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  EXPECT_EQ(find_cuda().problem, "");
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

TEST_F(FindCuda, ADeviceThatIsTooOldIsSaidToBe) {
  setenv("PIPER_CUDA_PATH", (kFakes / "all").c_str(), 1);
  setenv("FAKE_CUDA_CAPABILITY", "75", 1);
  EXPECT_EQ(
      to_string(find_cuda())
          .find("cuda:0  Fake H100, compute capability 7.5, 132 multiprocessors, 80.0 GiB; too "
                "old: 8.0 or later is needed\n"),
      0u);
}

TEST_F(FindCuda, ADriverThatDoesNotStartIsQuoted) {
  const fs::path here = folder("broken");
  copy("fake_cuda.so", here / "libcuda.so.1");
  setenv("PIPER_CUDA_PATH", here.c_str(), 1);
  setenv("FAKE_CUDA_INIT", "100", 1);
  EXPECT_EQ(find_cuda().problem,
            "cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected");
  setenv("FAKE_CUDA_INIT", "999", 1);
  EXPECT_EQ(find_cuda().problem, "cuInit: an unknown error (999)");
  unsetenv("FAKE_CUDA_INIT");
  setenv("FAKE_CUDA_DEVICES", "0", 1);
  EXPECT_EQ(find_cuda().problem, "the driver knows no device");
}

TEST_F(FindCuda, WhatIsNoLibraryOrLacksAFunctionIsNamed) {
  const fs::path here = folder("wrong");
  copy("old_driver.so", here / "libcuda.so.1");
  std::ofstream(here / "libnvrtc.so.13") << "no library";
  std::ofstream(here / "libnvrtc.so.12") << "no library";
  setenv("PIPER_CUDA_PATH", here.c_str(), 1);
  const CudaMachine machine = find_cuda();
  EXPECT_EQ(library(machine, "driver").problem,
            (here / "libcuda.so.1").string() + " has no function cuGetErrorString");
  EXPECT_EQ(machine.problem, "there is no driver that Piper can use");
  // Another may be found behind it; if none is, the file is said to be the matter.
  if (const CudaLibrary& nvrtc = library(machine, "NVRTC"); !nvrtc.found()) {
    EXPECT_NE(nvrtc.problem.find((here / "libnvrtc.so.1").string()), std::string::npos)
        << nvrtc.problem;
  }
}

TEST_F(FindCuda, WheelsAndFoldersOfOnesOwnGoFirst) {
  const fs::path wheels = folder("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib"),
                 own = folder("own"), conda = folder("conda/lib");
  for (const fs::path& each : {wheels, own, conda}) copy("fake_cuda.so", each / "libnvrtc.so.13");
  const auto path_of_nvrtc = [&] { return library(find_cuda(), "NVRTC").path; };
  setenv("CONDA_PREFIX", (folder("conda")).c_str(), 1);
  EXPECT_EQ(path_of_nvrtc(), conda / "libnvrtc.so.13");
  setenv("VIRTUAL_ENV", (folder("venv")).c_str(), 1);
  EXPECT_EQ(path_of_nvrtc(), wheels / "libnvrtc.so.13");
  setenv("PIPER_CUDA_PATH", ("/nowhere:" + own.string()).c_str(), 1);
  EXPECT_EQ(path_of_nvrtc(), own / "libnvrtc.so.13");
  EXPECT_EQ(library(find_cuda(), "NVRTC").version, "13.5");
}

// The environment's own come before those of the installation that it is made of; another python3
// that comes later on PATH has no part in it.
TEST_F(FindCuda, WheelsOfThePythonOnThePathAreFound) {
  const fs::path wheels = folder("env/lib/python3.12/site-packages/nvidia/cu13/lib"),
                 base = folder("base/lib/python3.12/site-packages/nvidia/cu13/lib"),
                 later = folder("later/lib/python3.12/site-packages/nvidia/cu13/lib");
  for (const fs::path& each : {wheels, base, later}) copy("fake_cuda.so", each / "libnvrtc.so.13");
  for (const char* program : {"base/bin", "later/bin"}) {
    const fs::path python = folder(program) / "python3.12";
    std::ofstream(python) << "#!/bin/sh\n";
    fs::permissions(python, fs::perms::owner_all);
    fs::create_symlink("python3.12", python.parent_path() / "python3");
  }
  fs::create_symlink(folder("base") / "bin/python3", folder("env/bin") / "python3");
  const std::string before = std::getenv("PATH");
  const std::string path =
      fmt::format("{0}/none:{0}/env/bin:{0}/later/bin:{1}", folder_.path(), before);
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(library(find_cuda(), "NVRTC").path, wheels / "libnvrtc.so.13");
  fs::remove_all(folder("env/lib"));
  EXPECT_EQ(library(find_cuda(), "NVRTC").path, base / "libnvrtc.so.13");
  fs::remove_all(folder("base/lib"));
  EXPECT_NE(library(find_cuda(), "NVRTC").path, later / "libnvrtc.so.13");
  setenv("PATH", before.c_str(), 1);
}

// NVRTC and its second library in a folder that the loader does not know, as in a wheel: it opens
// that one by its bare name, and compiles if somebody has opened it before.
TEST_F(FindCuda, NvrtcOfAFolderThatTheLoaderDoesNotKnowCompiles) {
  const fs::path nvrtc = library(find_cuda(), "NVRTC").path;
  fs::path builtins;
  for (const auto& entry :
       fs::directory_iterator(nvrtc.parent_path().empty() ? "." : nvrtc.parent_path()))
    if (entry.path().filename().string().starts_with("libnvrtc-builtins.so.")) builtins = entry;
  if (nvrtc.empty() || builtins.empty()) GTEST_SKIP() << "no NVRTC here";
  const fs::path here = folder("wheel");
  copy("fake_cuda.so", here / "libcuda.so.1");
  fs::create_symlink(nvrtc, here / nvrtc.filename());
  const auto session = [&] {
    return run_shell(fmt::format("env -u LD_LIBRARY_PATH PIPER_CUDA_PATH={} XDG_CACHE_HOME={} "
                                 "/lib64/ld-linux-x86-64.so.2 --inhibit-cache "
                                 "{}/tests/cuda_session 2>&1",
                                 here.string(), folder_.path(), PIPER_BINARY_DIR))
        .second;
  };
  if (const std::string said = session();
      said.find("NVRTC_ERROR_BUILTIN_OPERATION_FAILURE (7)") == std::string::npos)
    GTEST_SKIP() << "the loader itself knows NVRTC here: " << said;
  fs::create_symlink(builtins, here / builtins.filename());
  // Its code is a device's, which the faked driver does not take.
  EXPECT_EQ(session(), "program 'a session': cuModuleLoadDataEx: CUDA_ERROR_INVALID_IMAGE (200)\n");
}

TEST_F(FindCuda, WhatIsSwitchedOffIsSaid) {
  setenv("PIPER_CUDA_PATH", (kFakes / "all").c_str(), 1);
  EXPECT_EQ(to_string(find_cuda()).find("PIPER_CUDA_WITHOUT"), std::string::npos);
  setenv("PIPER_CUDA_WITHOUT", "graphs,vmm", 1);
  EXPECT_NE(to_string(find_cuda()).find("\n        off       vmm,graphs (PIPER_CUDA_WITHOUT)\n"),
            std::string::npos);
  setenv("PIPER_CUDA_WITHOUT", "cudn", 1);
  EXPECT_EQ(find_cuda().problem,
            "PIPER_CUDA_WITHOUT: 'cudn' is no part that can be switched off (did you mean "
            "'cudnn'?); there are vmm, cudnn, green, windows, graphs");
}

// Libraries are opened once for the process: each look is that of a process of its own.
template <class Look>
void expect_in_child(Look look) {
  EXPECT_EXIT(
      {
        setenv("FAKE_CUDA_REPORT", "0", 1);
        std::exit(look() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}
TEST_F(FindCuda, WhatIsSwitchedOffIsNotOpened) {
  const auto has_windows = [] { return cuda::windows_of_nccl() != nullptr; };
  setenv("PIPER_CUDA_PATH", (kFakes / "nccl").c_str(), 1);
  expect_in_child(has_windows);
  setenv("PIPER_CUDA_WITHOUT", "windows", 1);
  expect_in_child([&] { return !has_windows(); });
  const auto cudnn = [] { return cuda::opened<cuda::Cudnn>(); };
  setenv("PIPER_CUDA_PATH", (kFakes / "cudnn").c_str(), 1);
  expect_in_child([&] { return cudnn().ok(); });
  setenv("PIPER_CUDA_WITHOUT", "cudnn", 1);
  expect_in_child([&] {
    const auto opened = cudnn();
    return !opened && opened.error().message == "PIPER_CUDA_WITHOUT=cudnn switches cuDNN off";
  });
}

TEST_F(FindCuda, WhereThereIsNoneThePlacesAreSaid) {
  const fs::path here = folder("empty");
  setenv("PIPER_CUDA_PATH", here.c_str(), 1);
  const CudaMachine machine = find_cuda();
  if (library(machine, "driver").found()) GTEST_SKIP() << "this machine has a driver";
  const std::string text = to_string(machine);
  EXPECT_EQ(text.find("cuda    no device: there is no driver of NVIDIA\n"), 0u) << text;
  EXPECT_NE(text.find("driver    missing   libcuda.so.1: cannot open shared object file"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("looked in " + here.string()), std::string::npos) << text;
}

}  // namespace
}  // namespace piper
