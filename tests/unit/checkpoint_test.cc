// Checkpoints: what damage, failures and hostile files do, and layouts that differ.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <set>

#include "at_once.h"
#include "checkpoint_layouts.h"
#include "folder.h"
#include "piper/base/data.h"
#include "piper/base/float16.h"
#include "piper/runtime/checkpoint_tools.h"
#include "seed.h"

// The system calls of the file storage: one of them can fail, write half, or end the process.
namespace {

enum class Harm { kNone, kFail, kHalf, kDie };
Harm harm = Harm::kNone;
int calls_left = 0;  // until it happens
int calls_seen = 0;
std::set<std::string> unflushed;  // files that were written and not flushed
std::set<std::string> forgotten;  // files whose pages the system need not keep any more
std::set<std::string> folders_unflushed;  // folders in which others were made
int renamed_unflushed = 0;

Harm next_call() {
  ++calls_seen;
  if (harm == Harm::kNone || calls_left-- != 0) return Harm::kNone;
  if (harm == Harm::kDie) _exit(0);
  errno = ENOSPC;
  return harm;
}

std::string path_of(int file) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t size = readlink(link.c_str(), path, sizeof path);
  return std::string(path, size < 0 ? 0 : static_cast<size_t>(size));
}

}  // namespace

extern "C" {
ssize_t write(int file, const void* data, size_t size) {
  const bool counts = file > 2;
  const Harm now = counts ? next_call() : Harm::kNone;
  if (now == Harm::kFail) return -1;
  if (counts) unflushed.insert(path_of(file)), forgotten.erase(path_of(file));
  return syscall(SYS_write, file, data, now == Harm::kHalf ? (size + 1) / 2 : size);
}
int fsync(int file) {
  if (next_call() == Harm::kFail) return -1;
  unflushed.erase(path_of(file));
  folders_unflushed.erase(path_of(file));
  return 0;  // nothing is lost while the system runs
}
// Pages that are not on the disk yet stay.
int posix_fadvise(int file, off_t, off_t, int advice) noexcept {
  const std::string path = path_of(file);
  if (advice == POSIX_FADV_DONTNEED && !unflushed.contains(path)) forgotten.insert(path);
  return 0;
}
int mkdir(const char* path, mode_t mode) noexcept {
  std::error_code problem;
  const auto made = std::filesystem::weakly_canonical(path, problem);
  folders_unflushed.insert((made.has_filename() ? made : made.parent_path()).parent_path());
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int rename(const char* from, const char* to) noexcept {
  if (next_call() == Harm::kFail) return -1;
  renamed_unflushed += static_cast<int>(unflushed.size());
  return static_cast<int>(syscall(SYS_rename, from, to));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  if (next_call() == Harm::kFail) return -1;
  renamed_unflushed += static_cast<int>(unflushed.size());
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
}

namespace piper {
namespace {

uint64_t seed_of_test() {
  const uint64_t seed = given_seed().value_or(20261127);
  std::fprintf(stderr, "PIPER_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

Status open_and_verify(const std::string& folder) {
  PIPER_ASSIGN(const CheckpointReader reader, CheckpointReader::open(file_storage(), folder));
  for (size_t k = 0; k < reader.about().files.size(); ++k) PIPER_TRY(reader.verify(k));
  return ok_status();
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const std::string& path, std::string_view bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

// ---- Damage -------------------------------------------------------------------------------------

TEST(Checkpoint, EveryFlippedBitAndEveryCutIsFound) {
  std::mt19937_64 random(seed_of_test());
  const std::vector<ModelState> states = make_states(random, 12);
  const PlanSet set = make_set(random, states);
  const Folder folder;
  ASSERT_TRUE(save(file_storage(), folder.path(), set, states, at_step(7)));
  const std::string made = folder.path() + "/" + checkpoint_name(7);
  ASSERT_TRUE(open_and_verify(made));
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(made)) files.push_back(file.path());
  std::sort(files.begin(), files.end());
  ASSERT_GE(files.size(), 2U);
  int found = 0;
  const int flips = given_count().value_or(1000), cuts = flips / 10;
  for (int k = 0; k < flips + cuts; ++k) {
    const std::string& path = files[random() % files.size()];
    const std::string before = content_of(path);
    std::string after = before;
    if (k < flips)
      after[random() % after.size()] ^= static_cast<char>(1 << random() % 8);
    else
      after.resize(random() % after.size());
    put(path, after);
    found += open_and_verify(made) ? 0 : 1;
    put(path, before);
  }
  // There is no byte that changes nothing.
  EXPECT_EQ(found, flips + cuts);
  EXPECT_TRUE(open_and_verify(made));
}

// ---- Failures -----------------------------------------------------------------------------------

// Passes verbs on, and fails at one of them; a write that fails has written a part.
class FailingStorage : public Storage {
 public:
  explicit FailingStorage(int fails_at) : left_(fails_at) {}
  int seen() const { return seen_; }

  Status write(const std::string& path, std::span<const std::string_view> parts) override {
    if (!fails()) return file_storage().write(path, parts);
    const std::string_view torn[] = {parts[0].substr(0, parts[0].size() / 2)};
    (void)file_storage().write(path, torn);
    return refused();
  }
  Result<Bytes> read(const std::string& path) override {
    if (fails()) return refused();
    return file_storage().read(path);
  }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    return file_storage().list(folder);
  }
  Status publish(const std::string& built, const std::string& folder) override {
    if (fails()) return refused();
    return file_storage().publish(built, folder);
  }
  Status remove(const std::string& folder) override {
    if (fails()) return refused();
    return file_storage().remove(folder);
  }

 private:
  bool fails() {
    ++seen_;
    return left_-- == 0;
  }
  static Error refused() { return fail("the disk is full").with_code(ExitCode::kStorage); }
  int left_, seen_ = 0;
};

struct Saved {
  std::vector<ModelState> before, after;
  PlanSet set;
  explicit Saved(uint64_t seed) {
    std::mt19937_64 random(seed);
    before = make_states(random, 6);
    after = before;
    for (ModelState& state : after)
      for (std::byte& byte : state.values) byte ^= std::byte{0x11};
    set = make_set(random, before);
  }
  void save_old(const std::string& folder, int64_t old) const {
    if (old < 0) return;
    EXPECT_TRUE(save(file_storage(), folder, set, before, at_step(old)));
  }
  // Writes the checkpoint of `step`, then removes the one before it.
  Status save_next(Storage& storage, const std::string& folder, int64_t step, int64_t old) const {
    PIPER_TRY(save(storage, folder, set, after, at_step(step)));
    return old == step ? ok_status() : storage.remove(folder + "/" + checkpoint_name(old));
  }
  bool holds(const std::string& folder, const std::vector<ModelState>& states) const {
    const auto reader = CheckpointReader::open(file_storage(), folder);
    if (!reader || !open_and_verify(folder)) return false;
    const auto is_there = [&](const ModelState& state) {
      std::vector<std::byte> values(state.values.size());
      const Held held{state.type, {}, 0, num_elements(state.type.shape)};
      return reader->read(state.name, held, values.data()).ok() && values == state.values;
    };
    return std::all_of(states.begin(), states.end(), is_there);
  }
  // What a reader finds is whole: the old checkpoint, the new one, or (`may_be_empty`) none.
  void expect_whole(const std::string& folder, int64_t step, int64_t old, bool may_be_empty) const {
    const auto steps = list_checkpoints(file_storage(), folder);
    ASSERT_TRUE(steps);
    EXPECT_TRUE(may_be_empty || !steps->empty());
    for (const int64_t found : *steps) {
      const std::string path = folder + "/" + checkpoint_name(found);
      const bool is_new = holds(path, after), is_old = holds(path, before);
      EXPECT_TRUE(found == step ? is_new || (old == step && is_old) : found == old && is_old)
          << path;
    }
  }
};

// The old checkpoint has another step, the same one, or there is none.
constexpr int64_t kStep = 20, kOlds[] = {10, kStep, -1};

TEST(Checkpoint, AVerbThatFailsLeavesTheOldOrTheNewOne) {
  const Saved saved(seed_of_test());
  for (const int64_t old : kOlds) {
    int verbs = 1;
    for (int k = 0; k < verbs; ++k) {
      const Folder folder;
      saved.save_old(folder.path(), old);
      FailingStorage storage(k);
      const Status written = saved.save_next(storage, folder.path(), kStep, old < 0 ? kStep : old);
      EXPECT_FALSE(written && storage.seen() > k);
      verbs = std::max(verbs, storage.seen() + 1);
      SCOPED_TRACE(fmt::format("old {}, verb {}", old, k));
      saved.expect_whole(folder.path(), kStep, old, old < 0);
      // The next try is not held up by what is left of this one.
      ASSERT_TRUE(save(file_storage(), folder.path(), saved.set, saved.after, at_step(kStep)));
      EXPECT_TRUE(saved.holds(folder.path() + "/" + checkpoint_name(kStep), saved.after));
    }
    EXPECT_GT(verbs, 4);
  }
}

class SystemCalls : public testing::TestWithParam<Harm> {};

// Every call on its own: it fails, it writes half, or the process is gone before it.
TEST_P(SystemCalls, ThatFailLeaveTheOldOrTheNewOne) {
  const Saved saved(seed_of_test());
  for (const int64_t old : kOlds) {
    int calls = 1;
    for (int k = 0; k < calls; ++k) {
      const Folder folder;
      saved.save_old(folder.path(), old);
      calls_seen = 0;
      const auto work = [&] {
        harm = GetParam();
        calls_left = k;
        return saved.save_next(file_storage(), folder.path(), kStep, old < 0 ? kStep : old);
      };
      SCOPED_TRACE(fmt::format("old {}, call {}", old, k));
      if (GetParam() == Harm::kDie) {
        const pid_t child = fork();
        if (child == 0) {
          (void)work();
          _exit(1);  // no such call
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (WEXITSTATUS(status) == 0) calls = k + 2;
      } else {
        const Status written = work();
        harm = Harm::kNone;
        calls = calls_seen > k ? k + 2 : calls;
        if (GetParam() == Harm::kFail && calls_seen > k)
          EXPECT_EQ(written.ok() ? ExitCode::kOk : written.error().code, ExitCode::kStorage);
        else
          EXPECT_TRUE(written) << print_error(written.error());
      }
      saved.expect_whole(folder.path(), kStep, old, old < 0);
    }
    EXPECT_GT(calls, 8);
  }
}
INSTANTIATE_TEST_SUITE_P(Checkpoint, SystemCalls,
                         testing::Values(Harm::kFail, Harm::kHalf, Harm::kDie));

TEST(Checkpoint, NothingIsRenamedBeforeItIsOnTheDisk) {
  const Saved saved(seed_of_test());
  const Folder folder;
  unflushed.clear();
  renamed_unflushed = 0;
  ASSERT_TRUE(save(file_storage(), folder.path(), saved.set, saved.before, at_step(1)));
  ASSERT_TRUE(save(file_storage(), folder.path(), saved.set, saved.after, at_step(1)));
  EXPECT_EQ(renamed_unflushed, 0);
  EXPECT_TRUE(unflushed.empty());
}

TEST(Checkpoint, FoldersThatAreMadeLast) {
  const Saved saved(seed_of_test());
  const Folder folder;
  folders_unflushed.clear();
  ASSERT_TRUE(
      save(file_storage(), folder.path() + "/run/kept/", saved.set, saved.before, at_step(1)));
  EXPECT_EQ(folders_unflushed, std::set<std::string>());
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/run/kept/" + checkpoint_name(1)));
}

// Passes verbs on, and counts the reads of files that the system may still have in memory as they
// were written.
class ReadingStorage : public FailingStorage {
 public:
  ReadingStorage() : FailingStorage(-1) {}
  Result<Bytes> read(const std::string& path) override {
    ++(forgotten.contains(std::filesystem::canonical(path)) ? from_disk : from_memory);
    return file_storage().read(path);
  }
  int from_disk = 0, from_memory = 0;
};

TEST(Checkpoint, WhatIsReadBackComesFromTheDisk) {
  const Saved saved(seed_of_test());
  const Folder folder;
  ReadingStorage storage;
  ASSERT_TRUE(save(storage, folder.path(), saved.set, saved.before, at_step(1)));
  EXPECT_GT(storage.from_disk, 0);
  EXPECT_EQ(storage.from_memory, 0);
  const auto reader = open_newest(folder.path());
  ASSERT_TRUE(reader);
  forgotten.clear();
  ASSERT_TRUE(export_checkpoint(*reader, {}, folder.path() + "/out.safetensors"));
  EXPECT_EQ(forgotten.size(), 1U) << "the file under its first name";
}

// ---- Layouts ------------------------------------------------------------------------------------

// The whole state in another type, as a reader that asks for it is to get it.
std::vector<std::byte> converted(const ModelState& state, DType to) {
  const auto elements = static_cast<size_t>(num_elements(state.type.shape));
  std::vector<std::byte> out(elements * static_cast<size_t>(info(to).bytes));
  std::vector<float> values(elements);
  if (to == state.type.dtype) return state.values;
  std::memcpy(values.data(), state.values.data(), state.values.size());
  if (to == DType::kF64) return bytes_of(std::vector<double>(values.begin(), values.end()));
  round_to_halves(to, values.data(), out.data(), static_cast<int64_t>(elements));
  return out;
}

// Reads all that the ranks of a set hold, and compares it.
void expect_reads(const CheckpointReader& reader, const PlanSet& set,
                  const std::vector<ModelState>& states, std::mt19937_64& random) {
  constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
  for (int64_t rank = 0; rank < set.world(); ++rank) {
    const RoleProgram& role = role_of(set, rank);
    for (const Buffer& buffer : role.buffers) {
      const Tensor& tensor = role.tensor(buffer);
      const ModelState& state = state_named(states, tensor.name);
      Held held = held_of(role, tensor, coordinates_of(role.mesh, rank));
      if (state.type.dtype == DType::kF32) held.whole.dtype = kFloats[random() % 4];
      const std::vector<std::byte> whole = converted(state, held.whole.dtype);
      std::vector<std::byte> local = local_values(held, whole);
      // Past the end of a dim nothing is written.
      std::vector<std::byte> read(local.size(), std::byte{0});
      const Status status = reader.read(state.name, held, read.data());
      ASSERT_TRUE(status) << print_error(status.error());
      ASSERT_EQ(read, local) << state.name << ": " << to_string(held);
    }
  }
}

TEST(Checkpoint, RandomLayoutsReadWhatOthersWrote) {
  std::mt19937_64 random(seed_of_test());
  for (int k = 0; k < given_count().value_or(60); ++k) {
    const std::vector<ModelState> states = make_states(random, 10);
    const PlanSet writers = make_set(random, states), readers = make_set(random, states);
    const Folder folder;
    ASSERT_TRUE(save(file_storage(), folder.path(), writers, states, at_step(k)));
    const auto reader =
        CheckpointReader::open(file_storage(), folder.path() + "/" + checkpoint_name(k));
    ASSERT_TRUE(reader) << print_error(reader.error());
    SCOPED_TRACE(k);
    expect_reads(*reader, readers, states, random);
    expect_reads(*reader, writers, states, random);
    if (HasFatalFailure()) return;
  }
}

TEST(Checkpoint, EachElementIsWrittenOnce) {
  std::mt19937_64 random(seed_of_test());
  for (int k = 0; k < given_count().value_or(200); ++k) {
    const std::vector<ModelState> states = make_states(random, 8);
    const PlanSet set = make_set(random, states);
    std::map<std::string, std::vector<int>> writers;
    for (const ModelState& state : states)
      writers[state.name].resize(static_cast<size_t>(num_elements(state.type.shape)));
    for_each_written(set, [&](int64_t rank, size_t b, const Held& held) {
      const RoleProgram& role = role_of(set, rank);
      held.for_each_run([&](const Held::Run& run) {
        for (int64_t e = 0; e < run.count; ++e)
          ++writers[role.tensor(role.buffers[b]).name][static_cast<size_t>(run.whole + e)];
      });
    });
    for (const auto& [name, counts] : writers)
      ASSERT_TRUE(std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; })) << name;
  }
}

TEST(Checkpoint, ReplicasWriteAboutTheSame) {
  std::mt19937_64 random(seed_of_test());
  PlanSet set;
  RoleProgram role;
  role.mesh = {{"dp", 8}};
  int64_t all = 0, largest = 0;
  for (int s = 0; s < 40; ++s) {
    Tensor tensor;
    tensor.name = tensor.param = tensor.init = fmt::format("w{}", s);
    tensor.kind = BufferKind::kState;
    tensor.type = {DType::kF32, {static_cast<int64_t>(random() % 10000 + 1)}};
    all += tensor.type.bytes();
    largest = std::max(largest, tensor.type.bytes());
    Buffer buffer;
    buffer.tensor = s;
    role.tensors.push_back(tensor);
    role.buffers.push_back(buffer);
  }
  set.roles = {role};
  set.role_of_rank.assign(8, 0);
  std::vector<int64_t> bytes(8);
  for_each_written(set, [&](int64_t rank, size_t, const Held& held) {
    bytes[static_cast<size_t>(rank)] += held.count * 4;
  });
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LE(*most - *least, largest);
  EXPECT_LE(*most, all / 8 * 11 / 10);
}

TEST(Checkpoint, APieceThatLacksIsNamedWithItsFirstElement) {
  const Folder folder;
  const TensorType type{DType::kF32, {6, 4}};
  std::vector<float> values(8);
  const Held low{type, {{0, 1, 2, 0}}, 0, 8}, high{type, {{0, 1, 2, 2}}, 0, 8};
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  Checkpoint about = at_step(3);
  const std::string made = folder.path() + "/" + checkpoint_name(3);
  int64_t rank = 0;
  for (const Held& held : {low, high}) {
    const OwnPiece own[] = {{"w", held, data, 8}};
    const auto file = write_rank_file(file_storage(), made, rank++, own);
    ASSERT_TRUE(file);
    about.files.push_back(*file);
  }
  folder.write(checkpoint_name(3) + "/checkpoint.json", print_checkpoint(about));
  const auto reader = CheckpointReader::open(file_storage(), made);
  ASSERT_TRUE(reader);
  std::vector<float> read(24);
  auto* to = reinterpret_cast<std::byte*>(read.data());
  const Status whole = reader->read("w", {type, {}, 0, 24}, to);
  ASSERT_FALSE(whole);
  EXPECT_EQ(whole.error().message, "'w' of " + made + ": no file has its element 8");
  EXPECT_TRUE(reader->read("w", high, to));
  EXPECT_FALSE(reader->read("v", high, to));
}

TEST(Checkpoint, AStateMayBeCalledAsAPieceOfAnotherIs) {
  const Folder folder;
  const TensorType type{DType::kF32, {4}};
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  Checkpoint about = at_step(1);
  const std::string made = folder.path() + "/" + checkpoint_name(1);
  const Held whole{type, {}, 0, 4}, first{type, {}, 0, 1}, second{type, {}, 1, 1},
      rest{type, {}, 2, 2};
  const OwnPiece own[] = {{"w", first, data, 1},
                          {"w", second, data + 4, 1},
                          {"w#1", whole, data + 16, 4},
                          {"w", rest, data + 8, 2},
                          {"w#2", whole, data + 32, 4}};
  const auto file = write_rank_file(file_storage(), made, 0, own);
  ASSERT_TRUE(file);
  about.files.push_back(*file);
  folder.write(checkpoint_name(1) + "/checkpoint.json", print_checkpoint(about));
  const auto reader = CheckpointReader::open(file_storage(), made);
  ASSERT_TRUE(reader) << print_error(reader.error());
  size_t at = 0;
  for (const char* name : {"w", "w#1", "w#2"}) {
    std::vector<float> read(4);
    const Status got = reader->read(name, whole, reinterpret_cast<std::byte*>(read.data()));
    ASSERT_TRUE(got) << print_error(got.error());
    EXPECT_EQ(read, std::vector<float>(values.begin() + at, values.begin() + at + 4)) << name;
    at += 4;
  }
}

TEST(Checkpoint, PiecesMayOverlap) {
  const Folder folder;
  const TensorType type{DType::kI64, {100}};
  std::vector<int64_t> values(100);
  for (size_t k = 0; k < values.size(); ++k) values[k] = static_cast<int64_t>(k);
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  Checkpoint about = at_step(1);
  const std::string made = folder.path() + "/" + checkpoint_name(1);
  const Held all{type, {}, 0, 100};
  const Held inner{type, {}, 10, 5}, later{type, {}, 12, 30};
  int64_t rank = 0;
  for (const Held& held : {inner, later, all}) {
    const OwnPiece own[] = {{"w", held, data + held.first * 8, held.count}};
    const auto file = write_rank_file(file_storage(), made, rank++, own);
    ASSERT_TRUE(file);
    about.files.push_back(*file);
  }
  folder.write(checkpoint_name(1) + "/checkpoint.json", print_checkpoint(about));
  const auto reader = CheckpointReader::open(file_storage(), made);
  ASSERT_TRUE(reader) << print_error(reader.error());
  for (const int64_t first : {0, 11, 30, 50}) {
    std::vector<int64_t> read(static_cast<size_t>(100 - first));
    const Held wanted{type, {}, first, 100 - first};
    const Status status = reader->read("w", wanted, reinterpret_cast<std::byte*>(read.data()));
    ASSERT_TRUE(status) << print_error(status.error());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), values.begin() + first)) << first;
  }
}

// ---- Hostile files ------------------------------------------------------------------------------

// Opens a file of one tensor "w" of so many elements, with this text about its parts.
Status open_boxes(const std::string& boxes, int64_t elements = 2) {
  const Folder folder;
  const std::string zeros(static_cast<size_t>(elements) * 4, '\0');
  const NamedTensor tensors[] = {
      {"w", {DType::kF32, {elements}}, Bytes::copy_of(zeros.data(), zeros.size())}};
  const std::pair<std::string, std::string> metadata[] = {{"piper.boxes", boxes}};
  const std::string file =
      folder.write("rank00000.safetensors", safetensors_header(tensors, metadata) + zeros);
  const auto start = std::chrono::steady_clock::now();
  const auto opened = CheckpointReader::open_tensors(file);
  EXPECT_LE(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
            kAtOnce)
      << boxes;
  return opened ? ok_status() : Status(opened.error());
}

TEST(Checkpoint, PartsThatNoPlanHasAreRefusedAtOnce) {
  EXPECT_TRUE(open_boxes(R"({"w": {"shape": [4], "blocks": [[0, 1, 2, 1]], "range": [0, 2]}})"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::string bad[] = {
      "",
      "[]",
      "7",
      "{\"w\": 7}",
      "{\"w\": ",
      deep,
      "{\"w\": {\"shape\": " + deep + "}}",
      R"({"w": {"shape": [4], "blocks": [], "range": [0, 4]}})",  // more than is there
      R"({"w": {"shape": [4], "blocks": [], "range": [3, 2]}})",  // past the end
      R"({"w": {"shape": [-4], "blocks": [], "range": [0, 2]}})",
      R"({"w": {"shape": [4.5], "blocks": [], "range": [0, 2]}})",
      R"({"w": {"shape": ["4"], "blocks": [], "range": [0, 2]}})",
      R"({"w": {"shape": [9223372036854775807], "blocks": [], "range": [0, 2]}})",
      R"({"w": {"shape": [4294967296, 4294967296], "blocks": [], "range": [0, 2]}})",
      R"({"w": {"shape": [4], "blocks": [], "range": [9223372036854775807, 2]}})",
      R"({"w": {"shape": [4], "blocks": [], "range": [2, 9223372036854775807]}})",
      R"({"w": {"shape": [4], "blocks": [[1, 1, 2, 0]], "range": [0, 2]}})",  // no such dim
      R"({"w": {"shape": [4], "blocks": [[0, 0, 2, 0]], "range": [0, 2]}})",
      R"({"w": {"shape": [4], "blocks": [[0, 3, 1, 0]], "range": [0, 2]}})",  // no equal stretches
      R"({"w": {"shape": [4], "blocks": [[0, 1, 2, 3]], "range": [0, 2]}})",  // past the end
      R"({"w": {"shape": [4], "blocks": [[0, 1, 0, 0]], "range": [0, 2]}})",
      R"({"w": {"shape": [4], "blocks": [[0, 1, 2]], "range": [0, 2]}})",
      // 10^12 runs in a few bytes: of elements, of padding.
      R"({"w": {"shape": [1000000000000], "blocks": [[0, 500000000000, 1, 0]], "range": [0, 500000000000]}})",
      R"({"w": {"shape": [1000000000000], "blocks": [[0, 500000000000, 2, 1]], "range": [0, 1000000000000]}})",
      R"({"w": {"shape": [1000000000000, 2], "blocks": [[1, 1, 1, 0]], "range": [0, 1000000000000]}})",
  };
  for (const std::string& boxes : bad) {
    const Status opened = open_boxes(boxes);
    ASSERT_FALSE(opened) << boxes.substr(0, 100);
    EXPECT_EQ(opened.error().code, ExitCode::kStorage) << boxes.substr(0, 100);
  }
}

TEST(Checkpoint, FilesThatDisagreeOnATypeAreRefused) {
  const Folder folder;
  const std::string made = folder.path() + "/" + checkpoint_name(1);
  const std::vector<double> values(4);
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  for (const TensorType& other : {TensorType{DType::kF64, {4}}, TensorType{DType::kF32, {2, 2}}}) {
    Checkpoint about = at_step(1);
    int64_t rank = 0;
    for (const TensorType& type : {TensorType{DType::kF32, {4}}, other}) {
      const OwnPiece own[] = {{"w\n", {type, {}, 0, 4}, data, 4}};
      const auto file = write_rank_file(file_storage(), made, rank++, own);
      ASSERT_TRUE(file);
      about.files.push_back(*file);
    }
    folder.write(checkpoint_name(1) + "/checkpoint.json", print_checkpoint(about));
    const auto opened = CheckpointReader::open(file_storage(), made);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ExitCode::kStorage);
    EXPECT_EQ(opened.error().message.find('\n'), std::string::npos);
  }
}

TEST(Checkpoint, AManifestNamesFilesOfRanksOnly) {
  const auto with = [](std::vector<std::string> names) {
    Checkpoint about = at_step(1);
    for (std::string& name : names) about.files.push_back({std::move(name), "0", 0});
    return parse_checkpoint(print_checkpoint(about), "checkpoint.json").ok();
  };
  EXPECT_TRUE(with({"rank00000.safetensors", "rank00001.safetensors", "rank100000.safetensors"}));
  for (const std::string& name :
       {std::string("../rank00000.safetensors"), std::string("/etc/passwd"), std::string(""),
        std::string("."), std::string(".."), std::string("rank00000.safetensors\n"),
        std::string("rank0.safetensors"), std::string("rank-0001.safetensors"),
        std::string("rank00000.safetensors\0x", 23), std::string("a\\b.safetensors"),
        std::string("rank99999999999999999999.safetensors")})
    EXPECT_FALSE(with({name})) << quote_control(name);
  EXPECT_FALSE(with({"rank00001.safetensors", "rank00000.safetensors"}));
  EXPECT_FALSE(with({"rank00001.safetensors", "rank00001.safetensors"}));
}

TEST(Checkpoint, AManifestOfHostileJsonIsRefused) {
  const std::string good = print_checkpoint(at_step(12));
  ASSERT_TRUE(parse_checkpoint(good, "checkpoint.json"));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), deep, good + " ", good + good,
        changed("\"step\": 12", "\"step\": -12"), changed("\"step\": 12", "\"step\": 1e999"),
        changed("\"step\": 12", "\"step\": 9223372036854775808"),
        changed("\"step\": 12", "\"step\": 13"), changed("\"step\": 12", "\"step\": " + deep),
        changed("\"step\": 12", "\"step\": 12, \"step\": 12"),
        changed("\"shuffle\": true", "\"shuffle\": 1"), changed("\"loss\": 2.5", "\"loss\": []"),
        changed("\"files\": []", "\"files\": {}"), changed("\"files\": []", "\"files\": [7]"),
        changed("\"epochs\": {}", "\"epochs\": {\"a\": 9223372036854775808}"),
        changed("\"sources\": {}", "\"sources\": {\"a\": -1}")}) {
    const auto parsed = parse_checkpoint(text, "checkpoint.json");
    ASSERT_FALSE(parsed) << text.substr(0, 100);
    EXPECT_EQ(parsed.error().code, ExitCode::kStorage);
  }
  const auto other = parse_checkpoint(changed("\"format_version\": 3", "\"format_version\": 2"),
                                      "checkpoint.json");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ExitCode::kInput);
}

// ---- Folders and settings -----------------------------------------------------------------------

TEST(Checkpoint, OnlyItsOwnNamesAreListed) {
  const Folder folder;
  for (const char* name : {"step-000000010", "step-000000002", "step-1234567890", "step-10",
                           "step-00000000x", ".step-000000011.partial", "damaged-step-000000012",
                           "step--00000001", "step-99999999999999999999", "other"})
    std::filesystem::create_directory(folder.path() + "/" + name);
  const auto steps = list_checkpoints(file_storage(), folder.path());
  ASSERT_TRUE(steps);
  EXPECT_EQ(*steps, (std::vector<int64_t>{1234567890, 10, 2}));
  const auto none = list_checkpoints(file_storage(), folder.path() + "/nowhere");
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->empty());
}

TEST(Checkpoint, RulesSayWhichStay) {
  const std::vector<std::pair<int64_t, std::optional<double>>> all = {
      {100, 3.0}, {200, 2.0}, {300, 2.5}, {400, std::nullopt}, {500, 4.0}};
  const auto surplus = [&](const char* rules) {
    const auto keep = parse_keep(rules);
    EXPECT_TRUE(keep) << rules;
    std::vector<int64_t> steps = surplus_checkpoints(*keep, all);
    std::sort(steps.begin(), steps.end());
    return steps;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(surplus("last=1"), (Steps{100, 200, 300, 400}));
  EXPECT_EQ(surplus("last=2"), (Steps{100, 200, 300}));
  EXPECT_EQ(surplus("last=9"), Steps{});
  EXPECT_EQ(surplus("every=200"), (Steps{100, 300}));
  EXPECT_EQ(surplus("best=2"), (Steps{100, 400}));
  EXPECT_EQ(surplus("last=2,every=300,best=1"), Steps{100});
  EXPECT_TRUE(surplus_checkpoints(Keep(), all).empty());
  EXPECT_TRUE(surplus_checkpoints({1, 0, 0}, {}).empty());
  for (const char* rules : {"", "last", "last=", "last=0", "last=-1", "last=1,", "first=1",
                            "last=1;best=2", "=3", "last=99999999999999999999"}) {
    const auto keep = parse_keep(rules);
    ASSERT_FALSE(keep) << rules;
    EXPECT_EQ(keep.error().code, ExitCode::kUsage);
  }
  EXPECT_NE(parse_keep("lst=3").error().message.find("did you mean 'last'"), std::string::npos);
}

TEST(Checkpoint, SettingsAreComparedByTheirPaths) {
  const auto text = [](const std::vector<SettingChange>& changes) {
    std::string all;
    for (const auto& [setting, before, now] : changes)
      all += fmt::format("{}: {} -> {}\n", setting, before, now);
    return all;
  };
  const std::string before = "train: {global_batch: 8, optimizer: {adamw: {lr: 0.001, beta: 1}}}\n";
  EXPECT_EQ(text(changed_settings(before, before + "mesh: {dp: 4}\n")), "");
  EXPECT_EQ(text(changed_settings(before, "train: {optimizer: {adamw: {lr: 0.002, beta: 1}}}")),
            "global_batch: 8 -> \noptimizer.adamw.lr: 0.001 -> 0.002\n");
  EXPECT_EQ(text(changed_settings("", "train: {clip: [1, 2]}")), "clip:  -> [1, 2]\n");
  EXPECT_EQ(text(changed_settings("train: {a: [{x: 1}, {x: 2}]}", "train: {a: [{x: 1}]}")),
            "a.1.x: 2 -> \n");
  EXPECT_EQ(text(changed_settings("train: 7", "\t: [")), "");
  const std::string rounds =
      "directives:\n  - replicate: {over: dp, bucket: 1MiB, reduce: {dtype: int8, lossy: true}}\n";
  EXPECT_EQ(text(changed_settings("", rounds)), "lossy:  -> dtype: int8\n");
  EXPECT_EQ(text(changed_settings(rounds, rounds + "  - replicate: {over: pp}\n")), "");
  EXPECT_TRUE(covers_setting("lr", "optimizer.adamw.lr"));
  EXPECT_TRUE(covers_setting("optimizer", "optimizer.adamw.lr"));
  EXPECT_TRUE(covers_setting("adamw.lr", "optimizer.adamw.lr"));
  EXPECT_FALSE(covers_setting("l", "optimizer.adamw.lr"));
  EXPECT_FALSE(covers_setting("r", "optimizer.adamw.lr"));
  EXPECT_FALSE(covers_setting("", "optimizer.adamw.lr"));
}

}  // namespace
}  // namespace piper
