// Opens the driver, NVRTC, cuBLASLt, cuDNN and NCCL, and fills their tables of functions.
#include "libraries.h"

namespace piper::cuda {
namespace {

template <typename Function>
Status set(Function& to, const Library& library, const char* name) {
  PIPER_ASSIGN(void* function, function_in(library, name));
  to = reinterpret_cast<Function>(function);
  return ok_status();
}
// Fills a table of functions; the error names the one that is missing.
#define PIPER_SET(name, result, arguments) PIPER_TRY(set(table.name, library, #name));
#define PIPER_FILL(Table, FUNCTIONS)                  \
  Status fill(const Library& library, Table& table) { \
    FUNCTIONS(PIPER_SET)                              \
    return ok_status();                               \
  }
PIPER_FILL(Driver, PIPER_CUDA_DRIVER)
PIPER_FILL(Green, PIPER_CUDA_GREEN)
PIPER_FILL(Nvrtc, PIPER_NVRTC)
PIPER_FILL(CublasLt, PIPER_CUBLASLT)
PIPER_FILL(Cudnn, PIPER_CUDNN)
PIPER_FILL(Nccl, PIPER_NCCL)
PIPER_FILL(NcclWindows, PIPER_NCCL_WINDOWS)
#undef PIPER_FILL
#undef PIPER_SET

// Prints versions as these libraries number them: 13000 is 13.0, 91900 is 9.19.0, 22809 is 2.28.9.
std::string of_thousands(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}
std::string in_three(size_t version) {
  return fmt::format("{}.{}.{}", version / 10'000, version % 10'000 / 100, version % 100);
}

Result<std::string> version_of(const Driver& driver) {
  int version = 0;
  PIPER_CU(driver, cuDriverGetVersion, &version);
  constexpr int kLeast = 12000;
  if (version < kLeast)
    return fail("it is for CUDA {}, and {} is the least that Piper can use", of_thousands(version),
                of_thousands(kLeast));
  return "CUDA " + of_thousands(version);
}
Result<std::string> version_of(const Nvrtc& nvrtc) {
  int major = 0, minor = 0;
  if (int code = nvrtc.nvrtcVersion(&major, &minor)) return fail("nvrtcVersion: error {}", code);
  return fmt::format("{}.{}", major, minor);
}
Result<std::string> version_of(const CublasLt& cublas) {
  return in_three(cublas.cublasLtGetVersion());
}
Result<std::string> version_of(const Cudnn& cudnn) { return in_three(cudnn.cudnnGetVersion()); }
Result<std::string> version_of(const Nccl& nccl) {
  int version = 0;
  if (int code = nccl.ncclGetVersion(&version)) return fail("ncclGetVersion: error {}", code);
  return in_three(static_cast<size_t>(version));
}

// Fails if PIPER_CUDA_WITHOUT switches the functions of this table off.
template <class Table>
Status check_switch(const char* name) {
  if constexpr (kSwitch<Table> != nullptr) {
    PIPER_ASSIGN(const Without without, switched_off());
    if (without.*kSwitch<Table>)
      return fail("PIPER_CUDA_WITHOUT={} switches {} off", to_string(without), name);
  }
  return ok_status();
}

template <class Table>
Result<Opened<Table>> open_or_say() {
  PIPER_TRY(check_switch<Table>(About<Table>::kName));
  const Folders folders = library_folders();
  std::string path;
  Result<Opened<Table>> made = open_anew<Table>(folders, path);
  if (made) return made;
  std::vector<std::string> places = folders.first;
  places.insert(places.end(), folders.last.begin(), folders.last.end());
  const std::string files = join(
      std::vector<std::string>(std::begin(About<Table>::kFiles), std::end(About<Table>::kFiles)),
      " and ");
  return fail("NVIDIA's {} {}: {}", About<Table>::kName,
              path.empty() ? "is not here" : "cannot be used", made.error().message)
      .with_note(fmt::format("looked for {} in {} and where the system's loader looks", files,
                             join(places, ", ")))
      .with_note("help: piper-run --devices says what is found; PIPER_CUDA_PATH names folders");
}

}  // namespace

template <class Table>
Result<Opened<Table>> open_anew(const Folders& folders, std::string& path) {
  PIPER_ASSIGN(const Library library, open_library(About<Table>::kFiles, folders));
  path = library.path;
  if constexpr (requires { About<Table>::kBeside; }) load_beside(library, About<Table>::kBeside);
  Opened<Table> made{{}, library.path, {}};
  PIPER_TRY(fill(library, made.functions));
  PIPER_ASSIGN(made.version, version_of(made.functions));
  return made;
}

template <class Table>
Result<const Opened<Table>*> opened() {
  static const Result<Opened<Table>> once = open_or_say<Table>();
  if (!once) return once.error();
  return &*once;
}

#define PIPER_OPENED(Table)                                                            \
  template Result<Opened<Table>> open_anew(const Folders& folders, std::string& path); \
  template Result<const Opened<Table>*> opened<Table>();
PIPER_OPENED(Driver)
PIPER_OPENED(Nvrtc)
PIPER_OPENED(CublasLt)
PIPER_OPENED(Cudnn)
PIPER_OPENED(Nccl)
#undef PIPER_OPENED

namespace {

// Returns a part of a library that not all versions have.
template <class Table, class Part>
Result<Part> part_of() {
  PIPER_TRY(check_switch<Part>("a part of it"));
  PIPER_ASSIGN(const Opened<Table>* whole, opened<Table>());
  const char* const files[] = {whole->path.c_str()};
  PIPER_ASSIGN(const Library library, open_library(files, {}));
  Part made;
  PIPER_TRY(fill(library, made));
  return made;
}

}  // namespace

const Green* green_of_driver() {
  static const Result<Green> once = part_of<Driver, Green>();
  return once ? &*once : nullptr;
}
const NcclWindows* windows_of_nccl() {
  static const Result<NcclWindows> once = part_of<Nccl, NcclWindows>();
  return once ? &*once : nullptr;
}

Error failed_call(const Driver& driver, const char* call, int code) {
  const char *name = nullptr, *text = nullptr;
  if (driver.cuGetErrorName(code, &name) != 0 || !name) name = "an unknown error";
  if (driver.cuGetErrorString(code, &text) != 0 || !text) text = "";
  return fail("{}: {} ({}){}{}", call, name, code, *text ? ": " : "", text);
}

}  // namespace piper::cuda
