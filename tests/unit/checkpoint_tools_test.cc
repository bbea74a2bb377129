// piper-checkpoint: what is damaged, what differs, and what other programs get.
#include "piper/runtime/checkpoint_tools.h"

#include <chrono>
#include <fstream>

#include "checkpoint_layouts.h"
#include "folder.h"
#include "piper/base/data.h"
#include "shell.h"

namespace piper::checkpoint_tools_test {
namespace {

std::pair<int, std::string> program(const std::string& words) {
  return run_shell(fmt::format("{}/bin/piper-checkpoint {} 2>&1", PIPER_BINARY_DIR, words));
}

class CheckpointTools : public testing::Test {
 protected:
  CheckpointTools() {
    std::mt19937_64 random(7);
    states_ = make_states(random, 12);
    set_ = make_set(random, states_);
    for (RoleProgram& role : set_.roles)
      for (Tensor& tensor : role.tensors) change(tensor);
    write(5);
  }
  // One is tied, one a buffer, one of the optimizer.
  static void change(Tensor& tensor) {
    if (tensor.name == "layer.0.weight") tensor.aliases = {"head.weight"};
    if (tensor.name == "layer.3.count") tensor.param.clear();
    if (tensor.name == "layer.4.weight") tensor.param = tensor.init = "";
  }
  void write(int64_t step) {
    ASSERT_TRUE(save(file_storage(), folder_.path(), set_, states_, at_step(step)));
  }
  std::string at(int64_t step) const { return folder_.path() + "/" + checkpoint_name(step); }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  CheckpointReader reader() const { return *open_newest(folder_.path()); }

  // Writes checkpoint.json anew, so that its digest is right.
  void rewrite(const std::function<void(Checkpoint&)>& change) const {
    Checkpoint about = reader().about();
    change(about);
    std::ofstream(at(5) + "/checkpoint.json", std::ios::binary) << print_checkpoint(about);
  }
  std::string damage() const {
    const auto found = find_damage(at(5));
    EXPECT_TRUE(found) << print_error(found.error());
    return found ? join(*found, "\n") : "";
  }

  const Folder folder_;
  std::vector<ModelState> states_;
  PlanSet set_;
};

TEST_F(CheckpointTools, VerifyFindsWhatLacks) {
  EXPECT_EQ(damage(), "");
  rewrite([](Checkpoint& about) { about.files.pop_back(); });
  EXPECT_NE(damage().find("no file has"), std::string::npos) << damage();
}

TEST_F(CheckpointTools, VerifyFindsStatesThatNoFileHas) {
  rewrite([](Checkpoint& about) {
    about.states.push_back({"more\n", {DType::kF32, {3}}, StateKind::kParameter, {}});
  });
  EXPECT_EQ(damage(), "'more\\x0A': no file has it");
  rewrite([](Checkpoint& about) {
    about.states.pop_back();
    about.states[0].type.shape = {77};
  });
  EXPECT_NE(damage().find("its files have"), std::string::npos) << damage();
  rewrite([](Checkpoint& about) { about.states.erase(about.states.begin()); });
  EXPECT_NE(damage().find("does not name"), std::string::npos) << damage();
}

TEST_F(CheckpointTools, VerifyComparesPartsThatOverlap) {
  const TensorType type{DType::kF32, {8}};
  const std::vector<float> a{0, 1, 2, 3, 4, 5, 6, 7}, b{0, 1, 2, 9, 4, 5, 6, 7};
  Checkpoint about = at_step(9);
  about.states = {{"w", type, StateKind::kParameter, {}}};
  for (const auto* values : {&a, &b}) {
    about.files.clear();
    const Held parts[] = {{type, {}, 0, 6}, {type, {}, 2, 6}};
    for (int64_t rank = 0; rank < 2; ++rank) {
      const Held& held = parts[rank];
      const auto* from = (rank == 0 ? a : *values).data() + held.first;
      const OwnPiece own[] = {{"w", held, reinterpret_cast<const std::byte*>(from), held.count}};
      const auto file = write_rank_file(file_storage(), at(9), rank, own);
      ASSERT_TRUE(file);
      about.files.push_back(*file);
    }
    folder_.write(checkpoint_name(9) + "/checkpoint.json", print_checkpoint(about));
    const auto found = find_damage(at(9));
    ASSERT_TRUE(found);
    EXPECT_EQ(join(*found, "\n"),
              values == &a ? "" : "'w': two files differ in elements from 2 on");
  }
}

TEST_F(CheckpointTools, DiffSaysHowFarElementsAre) {
  const CheckpointReader before = reader();
  std::memset(states_[1].values.data(), 0, 4);
  write(6);
  const auto diff = diff_checkpoints(before, reader());
  ASSERT_TRUE(diff) << print_error(diff.error());
  ASSERT_EQ(diff->tensors.size(), 1U);
  EXPECT_EQ(diff->tensors[0].name, states_[1].name);
  EXPECT_EQ(diff->tensors[0].differing, 1);
  EXPECT_EQ(diff->tensors[0].relative, 1);
  EXPECT_EQ(diff->settings.size(), 2U);  // step and samples
  EXPECT_EQ(diff->equal, 11);
  const auto same = diff_checkpoints(before, before);
  ASSERT_TRUE(same);
  EXPECT_TRUE(same->same());
  EXPECT_EQ(print_checkpoint_diff(*same, false), "12 tensors have equal bits, 0 differ\n");
}

// Runs are listed once a tensor. If each block listed them again, 16 of them would take 16 times as
// long.
TEST(CheckpointDiffs, TakeNoLongerForTensorsInManyRuns) {
  using Clock = std::chrono::steady_clock;
  const TensorType type{DType::kBool, {1 << 20, 64}};
  const Bytes half = Bytes::zeros(static_cast<size_t>(type.bytes()) / 2);
  CheckpointReader::Pieces pieces;
  for (int64_t index = 0; index < 2; ++index)
    pieces["w"].push_back({{type, {{1, 1, 32, index}}, 0, type.bytes() / 2}, half});
  const auto reader = CheckpointReader::of_memory("made", {}, {{"w", type}}, pieces);
  std::byte element{};
  const Clock::time_point begin = Clock::now();
  ASSERT_TRUE(reader.read("w", {type, {}, 0, 1}, &element));
  const Clock::time_point listed = Clock::now();
  const auto diff = diff_checkpoints(reader, reader);
  const auto once = listed - begin, all = Clock::now() - listed;
  ASSERT_TRUE(diff) << print_error(diff.error());
  EXPECT_EQ(diff->equal, 1);
  EXPECT_LT(all / once, 12);
}

TEST_F(CheckpointTools, AFileHasAllNames) {
  const std::string file = path("out.safetensors");
  const auto written = export_checkpoint(reader(), {}, file);
  ASSERT_TRUE(written) << print_error(written.error());
  const auto tensors = read_safetensors(file);
  ASSERT_TRUE(tensors);
  EXPECT_EQ(tensors->size(), 12U);  // one of the optimizer less, one alias more
  for (const NamedTensor& tensor : *tensors) {
    EXPECT_NE(tensor.name, "layer.4.weight");
    const ModelState& state =
        state_named(states_, tensor.name == "head.weight" ? "layer.0.weight" : tensor.name);
    EXPECT_EQ(as_text(tensor.data.span()), as_text(state.values)) << tensor.name;
  }
}

TEST_F(CheckpointTools, AFolderIsImportedAgain) {
  ExportOptions options{true, "layer."};
  options.shard_bytes = 1000;
  const std::string out = path("out");
  const auto written = export_checkpoint(reader(), options, out + "/");
  ASSERT_TRUE(written) << print_error(written.error());
  EXPECT_NE(written->find("'head.weight' is '0.weight' (tied) and stored once"), std::string::npos)
      << *written;
  EXPECT_TRUE(std::filesystem::exists(out + "/model.safetensors.index.json"));
  EXPECT_FALSE(export_checkpoint(reader(), options, out)) << "it is not empty";
  options.replace = true;
  EXPECT_TRUE(export_checkpoint(reader(), options, out)) << "it takes the place of what is there";
  const std::string file = path("back.safetensors");
  std::ofstream(file + ".partial") << "what a run that was killed has left";
  const auto back = import_parameters(out, {.add_prefix = "layer."}, file);
  ASSERT_TRUE(back) << print_error(back.error());
  const auto tensors = read_safetensors(file);
  ASSERT_TRUE(tensors);
  EXPECT_EQ(tensors->size(), 11U);
  for (const NamedTensor& tensor : *tensors)
    EXPECT_EQ(as_text(tensor.data.span()), as_text(state_named(states_, tensor.name).values));
  // A shard that lacks is named.
  for (const auto& shard : std::filesystem::directory_iterator(out))
    if (shard.path().filename().string().starts_with("model-00001"))
      std::filesystem::remove(shard.path());
  EXPECT_FALSE(import_parameters(out, {.replace = true}, file));
}

// Types that plans do not have are named and left out, in one file and beside an index.
TEST_F(CheckpointTools, ImportLeavesOutForeignTypes) {
  const auto with_header = [](const std::string& header, size_t data) {
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    return file + header + std::string(data, 'x');
  };
  const std::string file =
      with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("q":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
                  R"("f":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[11,13]}})",
                  13);
  for (const char* from : {"one", "two", "three"}) std::filesystem::create_directory(path(from));
  folder_.write("one/model.safetensors", file);
  folder_.write("two/shard.safetensors", file);
  folder_.write("two/model.safetensors.index.json",
                R"({"weight_map":{"a":"shard.safetensors","f":"shard.safetensors"}})");
  for (const char* from : {"one", "two"}) {
    const auto text = import_parameters(path(from), {.replace = true}, path("in.safetensors"));
    ASSERT_TRUE(text) << print_error(text.error());
    EXPECT_NE(text->find("\n2 are of types that are not supported and are left out: "), text->npos);
    for (const char* name : {"q (U8)", "f (F8_E4M3)"}) EXPECT_NE(text->find(name), text->npos);
    const auto tensors = read_safetensors(path("in.safetensors"));
    ASSERT_TRUE(tensors);
    ASSERT_EQ(tensors->size(), 1U);
    EXPECT_EQ(as_text(tensors->front().data.span()), "xxxxxxxx");
  }
  folder_.write("three/model.safetensors",
                with_header(R"({"f":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1));
  const auto none = import_parameters(path("three"), {.replace = true}, path("in.safetensors"));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "there is no tensor of a type that is supported");
}

TEST_F(CheckpointTools, ExportRefusesWhatIsNotComplete) {
  EXPECT_FALSE(export_checkpoint(reader(), {false, "module."}, path("out.safetensors")));
  const std::string file = at(5) + "/rank00000.safetensors";
  std::fstream(file).seekp(-1, std::ios::end) << '\x5a';
  const auto changed = export_checkpoint(reader(), {}, path("out.safetensors"));
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code, ExitCode::kRefused);
  write(5);
  rewrite([](Checkpoint& about) { about.files.pop_back(); });
  EXPECT_FALSE(export_checkpoint(reader(), {}, path("out.safetensors")));
  EXPECT_FALSE(export_checkpoint(reader(), {true}, path("out")));
  EXPECT_FALSE(std::filesystem::exists(path("out.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(path("out")));
}

// A job that keeps its newest checkpoint removes what is exported meanwhile: that is no damage.
TEST_F(CheckpointTools, ExportGoesOnWhenTheCheckpointIsRemoved) {
  const CheckpointReader before = reader();
  ASSERT_TRUE(export_checkpoint(before, {}, path("before.safetensors")));
  write(6);
  ASSERT_TRUE(file_storage().remove(at(5)));
  const auto written = export_checkpoint(before, {}, path("after.safetensors"));
  ASSERT_TRUE(written) << print_error(written.error());
  const auto equal = diff_checkpoints(*open_newest(path("before.safetensors")),
                                      *open_newest(path("after.safetensors")));
  ASSERT_TRUE(equal);
  EXPECT_TRUE(equal->same());
  EXPECT_EQ(open_newest(folder_.path())->about().step, 6);
}

// What 16 bits cannot hold is refused, not written as infinity.
TEST_F(CheckpointTools, ExportHoldsAllThatIsFinite) {
  const auto floats = std::ranges::find_if(
      states_, [](const ModelState& one) { return one.name == "layer.0.weight"; });
  ASSERT_NE(floats, states_.end());
  const float large = 1e6F;
  std::memcpy(floats->values.data(), &large, sizeof large);
  write(6);
  const auto half = export_checkpoint(reader(), {.dtype = DType::kF16}, path("out.safetensors"));
  ASSERT_FALSE(half);
  EXPECT_NE(half.error().message.find("1 of its elements are too large for f16"), std::string::npos)
      << print_error(half.error());
  EXPECT_FALSE(std::filesystem::exists(path("out.safetensors")));
  EXPECT_TRUE(export_checkpoint(reader(), {.dtype = DType::kBF16}, path("out.safetensors")));
}

TEST_F(CheckpointTools, SizesHaveUnits) {
  EXPECT_EQ(*parse_bytes("5GB"), 5'000'000'000);
  EXPECT_EQ(*parse_bytes("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(*parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(*parse_bytes("7"), 7);
  for (const char* text : {"", "GB", "0", "-1", "5 GB", "5gb", "nan", "1e99"})
    EXPECT_FALSE(parse_bytes(text)) << text;
}

TEST_F(CheckpointTools, TheProgramEndsWithWhatItFound) {
  const std::string& dir = folder_.path();
  auto [code, text] = program("inspect --tensors " + dir);
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("parameter layer.0.weight"), std::string::npos) << text;
  EXPECT_NE(text.find("also head.weight"), std::string::npos) << text;
  EXPECT_EQ(program("inspect --json " + dir).first, 0);
  EXPECT_EQ(program("verify " + dir).first, 0);
  EXPECT_EQ(program(fmt::format("diff {} {}", dir, at(5))).first, 0);
  EXPECT_EQ(program(fmt::format("export {} {} --dtype bf16", dir, path("o.safetensors"))).first, 0);
  EXPECT_EQ(program(fmt::format("diff {} {}", dir, path("o.safetensors"))).first, 1);
  EXPECT_EQ(program(fmt::format("diff {} /nowhere", dir)).first, 2);
  EXPECT_EQ(program("verify /nowhere").first, 12);
  EXPECT_EQ(program("verify --json " + dir).first, 2);
  // A folder that --out of piper-run names is taken for the checkpoints in it, as by --resume.
  std::filesystem::create_directory(path("out"));
  std::filesystem::create_directory_symlink(dir, path("out/checkpoints"));
  EXPECT_EQ(program("verify " + path("out")).first, 0);
  EXPECT_EQ(program(fmt::format("export {} {}", path("out"), path("q.safetensors"))).first, 0);
  EXPECT_EQ(program("burn " + dir).first, 2);
  EXPECT_EQ(program("diff " + dir).first, 2);
  EXPECT_EQ(program(fmt::format("import {} {}", dir, path("i.safetensors"))).first, 1);
  std::tie(code, text) = program("import " + dir + " x.safetensors");
  EXPECT_NE(text.find("pytorch_model.bin is not supported"), std::string::npos) << text;
  rewrite([](Checkpoint& about) { about.files.pop_back(); });
  EXPECT_EQ(program("verify " + dir).first, 3);
  std::ofstream(at(5) + "/checkpoint.json") << "{";
  // The code is that of piper-run --resume.
  for (const char* verb : {"verify ", "inspect "}) EXPECT_EQ(program(verb + dir).first, 12) << verb;
  std::filesystem::remove(at(5) + "/checkpoint.json");
  EXPECT_EQ(program("verify " + at(5)).first, 12);
  std::ofstream(at(5) + "/checkpoint.json") << "{";
  EXPECT_EQ(program(fmt::format("export {} {}", dir, path("p.safetensors"))).first, 12);
}

}  // namespace
}  // namespace piper::checkpoint_tools_test
