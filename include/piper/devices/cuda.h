// The way to NVIDIA's devices: what of their driver and libraries is on this machine, and the
// backend that runs on them. All of it is found when somebody asks; Piper is built and starts where
// there is none.
#pragma once

#include <functional>
#include <memory>

#include "piper/devices/backend.h"
#include "piper/devices/cuda_kernels.h"

namespace piper {

// Describes a library as the loader found it, or why there is none.
struct CudaLibrary {
  std::string name;     // "driver", "NVRTC", "cuBLASLt", "cuDNN", "NCCL"
  std::string version;  // "13.0", "9.19.0"; empty where it is missing
  std::string path;     // of its file
  std::string problem;  // empty where it is there
  bool found() const { return problem.empty(); }
};
struct CudaDevice {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t bytes = 0;  // of its memory
};
struct CudaMachine {
  std::vector<CudaLibrary> libraries;  // the driver first
  std::vector<CudaDevice> devices;
  std::string switched_off;          // by PIPER_CUDA_WITHOUT: "vmm,graphs"; empty: nothing
  std::string problem;               // why there is no device; empty where there are some
  std::vector<std::string> folders;  // that were looked in, before those of the system's loader
};

// Looks for libraries in this order: the folders of PIPER_CUDA_PATH (colons between them), wheels
// of the Python index in the virtual environment, beside the python3 on PATH and in the system's
// folders of packages, conda's, the system's loader, CUDA_HOME and /usr/local/cuda. The driver is
// the system's own, or in PIPER_CUDA_PATH. Loads what it finds, so the first call takes some tenths
// of a second.
CudaMachine find_cuda();
// Returns a line for each device and library, and for what is missing.
std::string to_string(const CudaMachine& machine);

// Checks whether there is a device. Error: there is no driver or no device, and where it was looked
// for.
Status cuda_available();

// Sets the variables of the environment by which the driver and NCCL work as plans need it,
// whatever a job script says. Returns those that had another value, as NAME=VALUE with that value.
// Nobody else may read the environment meanwhile.
std::vector<std::string> set_cuda_environment(std::span<const RoleProgram> roles);

// Says what products can reach.
struct CudaPeak {
  int64_t devices = 0;  // of this machine
  double flops = 0;     // a second, of one of them; 0: not known
};
// Returns the peak of products of this type on a device, modulo as many as there are: its clock, as
// the driver names it, times its multiprocessors, times what NVIDIA publishes for one of its
// compute capability, without sparsity.
CudaPeak cuda_peak(int64_t device, DType dtype);

struct CudaOptions {
  int64_t device = 0;  // modulo as many as there are
  // A table of algorithms for products, of the form that src/devices/cuda/products_cuda.txt says;
  // empty: that of the process (take_cuda_products).
  std::string products;
  // Told what takes long, and what has no effect; nothing: nobody is.
  std::function<void(const std::string&)> note;
};
// Returns the backend of one rank on a device. It queues work on streams of the device, so an error
// may show after the call that caused it; the host cannot address its memory. Kernels are compiled
// when a program is loaded, and kept in the folder piper of $XDG_CACHE_HOME or ~/.cache. Products
// are cuBLASLt's. Attentions are cuDNN's where it is there and takes them (cuda_kernels.h), and
// slower kernels' where not, which `note` is told. The same program gives the same bits on devices
// of one kind with the same libraries. Error: as cuda_available.
Result<std::unique_ptr<Backend>> make_cuda_backend(CudaOptions options = {});
// Says what CudaCompiler has compiled for one architecture.
struct CudaCompiled {
  std::string architecture;  // "sm_90"
  std::string nvrtc;         // the version, "13.0"
  std::string folder;        // that keeps the code
  size_t programs = 0;       // that have kernels; equal sources count once
  size_t found = 0;          // so many of these were in the folder before
  int64_t bytes = 0;         // of all their code
};
std::string to_string(const CudaCompiled& compiled);  // a line

// Compiles what ranks of plans would compile where they run, without a device or a driver, into the
// folder that runs look in. Code is found there by the version of NVRTC, its options, which name
// the architecture, and the source, so the folder may be copied to another machine.
class CudaCompiler {
 public:
  // Architectures: "sm_90", "90"; an "a" or "f" at the end is ignored, as devices ask for code
  // without it. `note` is told what takes long. Errors: there is no NVRTC; NVRTC or Piper does not
  // know an architecture (kUsage); there is no such folder (kUsage).
  static Result<CudaCompiler> open(std::span<const std::string> architectures,
                                   std::function<void(const std::string&)> note);
  CudaCompiler(CudaCompiler&& other) noexcept;
  ~CudaCompiler();
  // Returns a backend for one rank, which notes the programs that are loaded and runs nothing. It
  // ends before the compiler. All are used by one thread.
  std::unique_ptr<Backend> make_backend();
  // Compiles what all of them have noted: an entry for each architecture. Errors: NVRTC's; the
  // folder cannot be written to (kStorage).
  Result<std::vector<CudaCompiled>> compile() const;

 private:
  struct State;
  explicit CudaCompiler(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Returns a program as the backend runs it, and what a role takes beside its arenas. Errors name
// program and op.
Result<DeviceProgram> cuda_program(const Program& program);
Result<Needs> cuda_needs(const RoleProgram& role);
// Returns what bits depend on: devices and versions of libraries, as far as they are found.
std::string cuda_versions();
// Returns the digest of the table by which it chooses algorithms of products.
std::string cuda_table();

// Sets the table of algorithms for products that all of this process takes from here on, in place
// of the one that is built in. To be called before anybody asks for a backend or a digest. Errors:
// what is wrong in it, by line.
Status take_cuda_products(const std::string& file);
// Finds the fastest of the algorithms that cuBLASLt offers for each product of the programs, on the
// device of the options, and writes it into `file`, a table of that form, beside what is there for
// other products, devices and versions; after each product, so that an end in the middle leaves
// what was found. An algorithm counts if it sums over k in a fixed order (in one piece, or in
// parts whose sums are stored and added in a separate step), has enough with the workspace of a
// run, gives the same bits each time and, but for rounding, what the library's first one gives. The
// first one stays unless another takes 2 % less time. What is wrong with others is told to
// `options.note`, and so is what each product has come to. Error: the device fails, or the file is
// no such table.
Status tune_cuda_products(std::span<const Program> programs, const std::string& file,
                          const CudaOptions& options);

}  // namespace piper
