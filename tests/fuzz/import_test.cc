// Hostile and broken ONNX files: each is refused with one located sentence, and nothing crashes.
#include "piper/frontend/import.h"

#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

namespace piper::hostile_import_test {
namespace {

namespace fs = std::filesystem;

class HostileOnnx : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("piper-import-{}-{}", getpid(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_ / "model");
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path model_path() const { return folder_ / "model" / "model.onnx"; }
  void write(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  // The message and its notes, "ok" when it is imported; every error must name the file.
  std::string import_bytes(const std::string& bytes) {
    write(model_path(), bytes);
    ImportOptions options;
    options.absent_values = may_be_absent_;
    options.batch = 2;
    const Result<Imported> result = import_onnx(model_path().string(), options);
    if (result.ok()) {
      printed_ = print_graph(result->graph);
      return "ok";
    }
    EXPECT_EQ(result.error().at.file, model_path().string());
    EXPECT_EQ(result.error().code, ExitCode::kInput);
    std::string out = result.error().message;
    for (const std::string& note : result.error().notes) out += "\n" + note;
    return out;
  }
  std::string import_proto(const onnx::ModelProto& model) {
    return import_bytes(model.SerializeAsString());
  }
  // y = Relu(x · w + b), with what `change` does to it.
  std::string import_changed(const std::function<void(onnx::ModelProto&)>& change) {
    onnx::ModelProto model = linear();
    change(model);
    return import_proto(model);
  }

  static onnx::NodeProto* add_node(onnx::GraphProto& graph, const std::string& op,
                                   const std::vector<std::string>& in,
                                   const std::vector<std::string>& out) {
    onnx::NodeProto* node = graph.add_node();
    node->set_name("the_" + op);
    node->set_op_type(op);
    for (const std::string& name : in) node->add_input(name);
    for (const std::string& name : out) node->add_output(name);
    return node;
  }
  static void add_tensor(onnx::GraphProto& graph, const std::string& name,
                         const std::vector<int64_t>& dims) {
    onnx::TensorProto* tensor = graph.add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::FLOAT);
    int64_t count = 1;
    for (const int64_t d : dims) {
      tensor->add_dims(d);
      count *= d;
    }
    for (int64_t i = 0; i < count; ++i) tensor->add_float_data(static_cast<float>(i));
  }
  static void add_ints(onnx::GraphProto& graph, const std::string& name,
                       const std::vector<int64_t>& values) {
    onnx::TensorProto* tensor = graph.add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::INT64);
    tensor->add_dims(static_cast<int64_t>(values.size()));
    for (const int64_t v : values) tensor->add_int64_data(v);
  }
  static onnx::ModelProto linear() {
    onnx::ModelProto model;
    model.set_ir_version(8);
    model.add_opset_import()->set_version(17);
    onnx::GraphProto& graph = *model.mutable_graph();
    graph.set_name("g");
    onnx::ValueInfoProto* x = graph.add_input();
    x->set_name("x");
    auto* type = x->mutable_type()->mutable_tensor_type();
    type->set_elem_type(onnx::TensorProto::FLOAT);
    type->mutable_shape()->add_dim()->set_dim_param("batch");
    type->mutable_shape()->add_dim()->set_dim_value(3);
    add_tensor(graph, "fc.weight", {3, 4});
    add_tensor(graph, "fc.bias", {4});
    add_node(graph, "MatMul", {"x", "fc.weight"}, {"h"});
    add_node(graph, "Add", {"h", "fc.bias"}, {"z"});
    add_node(graph, "Relu", {"z"}, {"y"});
    graph.add_output()->set_name("y");
    return model;
  }
  static onnx::TensorProto& weight(onnx::ModelProto& model) {
    return *model.mutable_graph()->mutable_initializer(0);
  }
  static onnx::NodeProto& node(onnx::ModelProto& model, int i) {
    return *model.mutable_graph()->mutable_node(i);
  }

  // The weight in a file beside the model.
  std::string import_external(const std::string& location, const std::string& offset = "0",
                              const std::string& length = "48") {
    return import_changed([&](onnx::ModelProto& model) {
      onnx::TensorProto& tensor = weight(model);
      tensor.clear_float_data();
      tensor.set_data_type(type_);
      tensor.set_data_location(onnx::TensorProto::EXTERNAL);
      const std::pair<const char*, std::string> entries[] = {
          {"location", location}, {"offset", offset}, {"length", length}};
      if (gives_weight_) model.mutable_graph()->add_output()->set_name(tensor.name());
      for (const auto& [key, value] : entries) {
        onnx::StringStringEntryProto* entry = tensor.add_external_data();
        entry->set_key(key);
        entry->set_value(value);
      }
    });
  }
  fs::path folder_;
  bool may_be_absent_ = false, gives_weight_ = false;
  std::string printed_;  // of the last model that was imported
  onnx::TensorProto::DataType type_ = onnx::TensorProto::FLOAT;
};

// An output that is an initializer has no node that could be refused for it.
TEST_F(HostileOnnx, AnOutputWhoseDataIsNotThereIsRefused) {
  may_be_absent_ = gives_weight_ = true;
  EXPECT_TRUE(import_external("absent.bin")
                  .starts_with("it computes with 'fc.weight', which is no parameter and whose data "
                               "file is not there"));
}

TEST_F(HostileOnnx, ACountOfStepsIsAWholeNumber) {
  onnx::ModelProto model;
  std::ifstream in(PIPER_SOURCE_DIR "/tests/data/training/adam.onnx", std::ios::binary);
  ASSERT_TRUE(model.ParseFromIstream(&in));
  for (const double count : {-1.0, 0.5, 1e300, double{INFINITY}, double{NAN}}) {
    for (auto& tensor :
         *model.mutable_training_info(0)->mutable_algorithm()->mutable_initializer()) {
      if (tensor.name() != "T") continue;
      tensor.clear_raw_data();
      tensor.clear_double_data();
      tensor.set_data_type(onnx::TensorProto::DOUBLE);
      tensor.add_double_data(count);
    }
    const std::string text = import_proto(model);
    EXPECT_NE(text.find(fmt::format("T 'T' begins with {}, which is no number of steps", count)),
              std::string::npos)
        << text;
  }
}

// Rules check operands and results only after parameters are found.
TEST_F(HostileOnnx, NodesWithoutTheirOperandsAreRefused) {
  const std::vector<std::vector<std::string>> operands = {{"h"}, {"x", "fc.bias", "h"}, {}};
  for (const auto& names : operands)
    for (const char* weight : {"fc.weight", "onnx::MatMul_3"})
      EXPECT_NE(import_changed([&](onnx::ModelProto& model) {
                  model.mutable_graph()->mutable_initializer(0)->set_name(weight);
                  node(model, 0).set_input(1, weight);
                  node(model, 1).clear_input();
                  for (const std::string& name : names) node(model, 1).add_input(name);
                }),
                "ok")
          << names.size();
}

TEST_F(HostileOnnx, RecurrentWeightsWithoutElementsAreRefused) {
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 0, 3}, {0, 16, 3}, {1, 16, 0}})
    EXPECT_NE(import_changed([&](onnx::ModelProto& model) {
                onnx::GraphProto& graph = *model.mutable_graph();
                graph.clear_node();
                graph.clear_initializer();
                add_tensor(graph, "onnx::LSTM_7", dims);
                add_tensor(graph, "onnx::LSTM_8", {1, 16, 4});
                add_node(graph, "LSTM", {"x", "onnx::LSTM_7", "onnx::LSTM_8"}, {"y"});
              }),
              "ok");
}

// A condition that is passed around a circle in the loop's body never was true.
TEST_F(HostileOnnx, ALoopWhoseConditionIsACircleIsRefused) {
  const std::string text = import_changed([&](onnx::ModelProto& model) {
    onnx::GraphProto& graph = *model.mutable_graph();
    add_ints(graph, "turns", {2});
    onnx::NodeProto* loop = add_node(graph, "Loop", {"turns", "", "y"}, {"last"});
    onnx::AttributeProto* attribute = loop->add_attribute();
    attribute->set_name("body");
    attribute->set_type(onnx::AttributeProto::GRAPH);
    onnx::GraphProto& body = *attribute->mutable_g();
    body.set_name("body");
    for (const char* name : {"turn", "before", "state"}) body.add_input()->set_name(name);
    add_node(body, "Identity", {"b"}, {"a"});
    add_node(body, "Identity", {"a"}, {"b"});
    add_node(body, "Relu", {"state"}, {"next"});
    for (const char* name : {"a", "next"}) body.add_output()->set_name(name);
    graph.mutable_output(0)->set_name("last");
  });
  EXPECT_NE(text.find("is not supported where its body decides whether it goes on"),
            std::string::npos)
      << text;
}

// ---- What is written of a model with training_info
// ------------------------------------------------

using WrittenOnnx = HostileOnnx;

onnx::ModelProto written(const fs::path& model, const fs::path& to, const std::string& logits) {
  TrainingExport training;
  for (const char* name : {"fc.weight", "fc.bias"})
    training.training.updates.push_back({.parameter = name, .rate = 0.1});
  if (logits.empty()) training.output = "y";
  if (!logits.empty()) training.cross_entropy = {.logits = logits, .labels = "labels"};
  ImportOptions options;
  options.batch = 2;
  const Status done = write_onnx_training(model.string(), options, training, to.string());
  EXPECT_TRUE(done) << print_error(done.error());
  onnx::ModelProto made;
  std::ifstream in(to, std::ios::binary);
  EXPECT_TRUE(made.ParseFromIstream(&in));
  return made;
}

TEST_F(WrittenOnnx, NamesTheDomainsOfAllNodes) {
  onnx::ModelProto model = linear();
  node(model, 2).set_op_type("Gelu");
  node(model, 2).set_domain("com.microsoft");
  write(model_path(), model.SerializeAsString());
  const onnx::ModelProto made = written(model_path(), folder_ / "made.onnx", "");
  std::string sets;
  for (const auto& one : made.opset_import())
    sets += fmt::format("{}:{} ", one.domain(), one.version());
  EXPECT_EQ(sets, ":17 ai.onnx.preview.training:1 com.microsoft:1 ");
}

// The dim of the batch that an input of labels leaves open is that of an input with one.
TEST_F(WrittenOnnx, LabelsHaveTheBatchOfTheSamples) {
  const auto labels = [&](const onnx::ModelProto& model) {
    write(model_path(), model.SerializeAsString());
    const onnx::ModelProto made = written(model_path(), folder_ / "made.onnx", "y");
    for (const auto& input : made.training_info(0).algorithm().input())
      if (input.name() == "labels") return input.type().tensor_type().shape().ShortDebugString();
    return std::string("no labels");
  };
  onnx::ModelProto model = linear();
  EXPECT_EQ(labels(model), "dim { dim_param: \"batch\" }");
  onnx::GraphProto& graph = *model.mutable_graph();
  onnx::ValueInfoProto* shift = graph.add_input();  // the same for all samples
  shift->set_name("shift");
  auto* type = shift->mutable_type()->mutable_tensor_type();
  type->set_elem_type(onnx::TensorProto::FLOAT);
  type->mutable_shape()->add_dim()->set_dim_value(4);
  node(model, 1).set_input(1, "shift");
  node(model, 2).set_output(0, "r");
  add_node(graph, "Add", {"r", "fc.bias"}, {"y"});
  graph.mutable_input()->SwapElements(0, 1);
  EXPECT_EQ(labels(model), "dim { dim_param: \"batch\" }");
  model = linear();
  model.mutable_graph()->clear_input();  // nothing is read but the labels
  add_tensor(*model.mutable_graph(), "x", {2, 3});
  EXPECT_EQ(labels(model), "dim { dim_value: 2 }");
}

TEST_F(HostileOnnx, TheModelItselfIsFine) { EXPECT_EQ(import_proto(linear()), "ok"); }

// ---- Files --------------------------------------------------------------------------------------

TEST_F(HostileOnnx, NotAModel) {
  const char* const kMessage = "not an ONNX model, or a truncated one";
  EXPECT_EQ(import_bytes(""), kMessage);
  EXPECT_EQ(import_bytes("#!/bin/sh\nexit 0\n"), kMessage);
  EXPECT_EQ(import_proto(onnx::ModelProto()), kMessage);
}

TEST_F(HostileOnnx, TruncatedAnywhere) {
  const std::string bytes = linear().SerializeAsString();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(import_bytes(bytes.substr(0, size)), "ok") << size;
  }
}

TEST_F(HostileOnnx, LargerThanAllowed) {
  write(model_path(), linear().SerializeAsString());
  ImportOptions options;
  options.max_file_bytes = 100;
  const Result<Imported> result = import_onnx(model_path().string(), options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message.substr(0, 18), "the model file has");
}

// Two bytes are an attribute without anything: where nodes hold them, a small file takes gigabytes
// once it is parsed.
TEST_F(HostileOnnx, ManyEmptyMessagesAreCountedBeforeTheyAreMade) {
  const auto field = [](int number, const std::string& bytes) {
    std::string out;
    for (uint64_t value :
         {static_cast<uint64_t>(number << 3 | 2), static_cast<uint64_t>(bytes.size())}) {
      for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
      out += static_cast<char>(value);
    }
    return out + bytes;
  };
  std::string attributes;
  for (int i = 0; i < 21'000'000; ++i) attributes += {'\x2a', '\0'};
  const std::string of_a_graph = field(7, field(1, attributes)),
                    of_a_function = field(25, field(7, attributes));
  for (const std::string& bytes : {of_a_graph, of_a_function})
    EXPECT_EQ(import_bytes(bytes),
              "the model has more than 20000000 messages and texts (nodes, tensors, names)");
}

TEST_F(HostileOnnx, AbsentOrNoFile) {
  EXPECT_FALSE(import_onnx((folder_ / "absent.onnx").string(), {}).ok());
  EXPECT_FALSE(import_onnx(folder_.string(), {}).ok());
}

TEST_F(HostileOnnx, DeeplyNestedAttributes) {
  onnx::ModelProto model = linear();
  onnx::GraphProto* graph = model.mutable_graph();
  for (int i = 0; i < 60; ++i) {
    onnx::NodeProto* nested = graph->add_node();
    nested->set_op_type("If");
    nested->set_name("n");
    onnx::AttributeProto* attr = nested->add_attribute();
    attr->set_name("then_branch");
    attr->set_type(onnx::AttributeProto::GRAPH);
    graph = attr->mutable_g();
  }
  EXPECT_EQ(import_proto(model), "not an ONNX model, or a truncated one");
}

TEST_F(HostileOnnx, RandomChangesNeverCrash) {
  const uint64_t seed = 20240607;
  std::mt19937_64 random(seed);
  const std::string bytes = linear().SerializeAsString();
  for (int i = 0; i < 3000; ++i) {
    std::string changed = bytes;
    for (uint64_t k = random() % 4 + 1; k > 0; --k) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    import_bytes(changed);  // any answer will do
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", round " << i;
  }
}

// ---- External data ------------------------------------------------------------------------------

TEST_F(HostileOnnx, ExternalDataIsReadBesideTheModel) {
  fs::create_directories(folder_ / "model" / "data");
  write(folder_ / "model" / "data" / "w.bin", std::string(64, '\0'));
  EXPECT_EQ(import_external("data/w.bin"), "ok");
  EXPECT_EQ(import_external("data/w.bin", "16"), "ok");
  EXPECT_EQ(import_external("data/w.bin", "3"), "ok");  // not on a boundary
}

TEST_F(HostileOnnx, ExternalDataElsewhere) {
  write(folder_ / "secret.bin", std::string(64, '\0'));
  const std::string who = "initializer 'fc.weight': external data ";
  EXPECT_EQ(import_external("../secret.bin"), who + "'../secret.bin': '..' is not allowed");
  EXPECT_EQ(import_external("a/../../secret.bin"),
            who + "'a/../../secret.bin': '..' is not allowed");
  const std::string absolute = (folder_ / "secret.bin").string();
  EXPECT_EQ(import_external(absolute), who + "'" + absolute + "': an absolute path is not allowed");
  EXPECT_EQ(import_external(""), who + "'': the location is empty");
  EXPECT_EQ(import_external("./w.bin"), who + "'./w.bin': not a plain relative path");
  EXPECT_EQ(import_external("absent.bin"),
            who +
                "'absent.bin': No such file or directory\nhelp: put the file beside the model; "
                "'piperc --dry-run' says what would be done without it");
  fs::create_symlink(folder_ / "secret.bin", folder_ / "model" / "link.bin");
  EXPECT_EQ(import_external("link.bin"), who + "'link.bin': a symbolic link is not allowed");
  fs::create_directory_symlink(folder_, folder_ / "model" / "up");
  EXPECT_EQ(import_external("up/secret.bin"),
            who + "'up/secret.bin': a symbolic link is not allowed");
  fs::create_hard_link(folder_ / "secret.bin", folder_ / "model" / "hard.bin");
  EXPECT_EQ(import_external("hard.bin"), who + "'hard.bin': the file has further hard links");
  EXPECT_EQ(import_external("."), who + "'.': not a plain relative path");
  fs::create_directories(folder_ / "model" / "sub");
  EXPECT_EQ(import_external("sub"), who + "'sub': not a regular file");
}

// For plans that nobody trains with: floats may be absent, but neither integers nor what else is
// wrong with a file.
TEST_F(HostileOnnx, ExternalDataMayBeAbsent) {
  may_be_absent_ = true;
  const std::string who = "initializer 'fc.weight': external data ";
  EXPECT_EQ(import_external("absent.bin"), "ok");
  EXPECT_NE(printed_.find(" = digest:absent"), printed_.npos) << printed_;
  EXPECT_EQ(import_external("../absent.bin"), who + "'../absent.bin': '..' is not allowed");
  fs::create_symlink(folder_ / "nowhere", folder_ / "model" / "link.bin");
  EXPECT_EQ(import_external("link.bin"), who + "'link.bin': a symbolic link is not allowed");
  write(folder_ / "model" / "short.bin", std::string(40, '\0'));
  EXPECT_EQ(import_external("short.bin"),
            who + "'short.bin': 48 bytes at offset 0 are more than the file of 40 bytes holds");
  type_ = onnx::TensorProto::INT64;
  EXPECT_EQ(
      import_external("absent.bin", "0", "96"),
      who +
          "'absent.bin': the file is not there, and zeros cannot stand for the integers that it "
          "holds; keep them in the model file");
}

TEST_F(HostileOnnx, ExternalDataOutOfBounds) {
  write(folder_ / "model" / "w.bin", std::string(64, '\0'));
  const std::string who = "initializer 'fc.weight': ";
  EXPECT_EQ(
      import_external("w.bin", "17"),
      who +
          "external data 'w.bin': 48 bytes at offset 17 are more than the file of 64 bytes holds");
  EXPECT_EQ(import_external("w.bin", "65"),
            who + "external data 'w.bin': offset 65 is outside the file of 64 bytes");
  EXPECT_EQ(import_external("w.bin", "-1"), who + "external data has a wrong offset '-1'");
  EXPECT_EQ(import_external("w.bin", "0", "99999999999999999999"),
            who + "external data has a wrong length '99999999999999999999'");
  EXPECT_EQ(import_external("w.bin", "0", "44"),
            "initializer 'fc.weight' is f32[3,4], which takes 48 bytes, but 44 are stored");
}

// ---- Tensors ------------------------------------------------------------------------------------

TEST_F(HostileOnnx, WrongTensors) {
  EXPECT_EQ(import_changed([](auto& m) { weight(m).set_dims(0, -3); }),
            "initializer 'fc.weight' has a negative dim: -3");
  EXPECT_EQ(import_changed([](auto& m) { weight(m).set_dims(0, int64_t{1} << 62); }),
            "initializer 'fc.weight' is larger than 1.0 TiB");
  EXPECT_EQ(import_changed([](auto& m) { weight(m).set_dims(0, 5); }),
            "initializer 'fc.weight' is f32[5,4], which takes 80 bytes, but 48 are stored");
  EXPECT_EQ(import_changed([](auto& m) { weight(m).set_data_type(onnx::TensorProto::UINT32); }),
            "initializer 'fc.weight' has elements of uint32, which is not supported");
  EXPECT_EQ(import_changed([](auto& m) { weight(m).set_data_type(99); }),
            "initializer 'fc.weight' has elements of type 99, which is not supported");
  EXPECT_EQ(import_changed([](auto& m) {
              for (int i = 0; i < 20; ++i) weight(m).add_dims(1);
            }),
            "initializer 'fc.weight' has 22 dims; at most 16 are supported");
  EXPECT_EQ(import_changed([](auto& m) { weight(m).mutable_segment()->set_begin(0); }),
            "initializer 'fc.weight': is stored in segments, which is not supported");
  EXPECT_EQ(import_changed([](auto& m) { m.mutable_graph()->add_sparse_initializer(); }),
            "sparse initializers are not supported");
}

TEST_F(HostileOnnx, WrongInputs) {
  auto shape = [](onnx::ModelProto& m) {
    return m.mutable_graph()
        ->mutable_input(0)
        ->mutable_type()
        ->mutable_tensor_type()
        ->mutable_shape();
  };
  EXPECT_EQ(import_changed([&](auto& m) { shape(m)->mutable_dim(1)->set_dim_value(-3); }),
            "input 'x' has a negative dim: -3");
  EXPECT_EQ(import_changed([&](auto& m) { shape(m)->mutable_dim(1)->set_dim_param("width"); }),
            "dim 1 of input 'x' ('width') is dynamic: the strategy must bind it");
  EXPECT_EQ(
      import_changed([&](auto& m) { shape(m)->mutable_dim(1)->set_dim_value(int64_t{1} << 60); }),
      "input 'x' is too large: f32[2,1152921504606846976]");
  EXPECT_EQ(import_changed([](auto& m) { m.mutable_graph()->mutable_input(0)->clear_type(); }),
            "input 'x' is not a tensor");
}

// ---- Graphs -------------------------------------------------------------------------------------

TEST_F(HostileOnnx, WrongNames) {
  EXPECT_EQ(import_changed([](auto& m) { node(m, 1).set_input(0, "nowhere"); }),
            "node 'the_Add' (Add) reads 'nowhere', which nothing defines");
  EXPECT_EQ(import_changed([](auto& m) { node(m, 1).set_output(0, "h"); }),
            "the name 'h' is defined twice, as an output of a node and as an output of a node");
  EXPECT_EQ(import_changed([](auto& m) { node(m, 2).set_output(0, "x"); }),
            "the name 'x' is defined twice, as an input and as an output of a node\n"
            "help: the exporter calls a buffer of the outermost module and the result of a "
            "function alike, as 'mean' and 't': give the buffer another name");
  EXPECT_EQ(import_changed([](auto& m) { weight(m).set_name("fc.bias"); }),
            "initializer 'fc.bias' is there twice");
  EXPECT_EQ(import_changed([](auto& m) { weight(m).set_name(""); }),
            "an initializer has an empty name");
  EXPECT_EQ(import_changed([](auto& m) { weight(m).set_name(std::string(5000, 'a')); }),
            "an initializer has a name of 5000 bytes; at most 4096 are allowed");
  EXPECT_EQ(import_changed([](auto& m) { weight(m).set_name("\x1b[31mred\x1b\xff"); }),
            "an initializer '\\x1B[31mred\\x1B\\xFF' has a name that is not UTF-8");
  EXPECT_EQ(
      import_changed([](auto& m) { m.mutable_graph()->mutable_output(0)->set_name("nowhere"); }),
      "the output 'nowhere' is not defined");
  EXPECT_EQ(import_changed([](auto& m) { m.mutable_graph()->clear_output(); }),
            "the graph has no outputs");
}

TEST_F(HostileOnnx, Cycles) {
  EXPECT_EQ(import_changed([](auto& m) { node(m, 1).set_input(1, "y"); }),
            "node 'the_Add' (Add) depends on its own result: the graph has a cycle");
  EXPECT_EQ(import_changed([](auto& m) { node(m, 2).set_input(0, "y"); }),
            "node 'the_Relu' (Relu) depends on its own result: the graph has a cycle");
}

TEST_F(HostileOnnx, NodesInAnyOrder) {
  EXPECT_EQ(import_changed([](auto& m) { m.mutable_graph()->mutable_node()->SwapElements(0, 2); }),
            "ok");
}

TEST_F(HostileOnnx, UnsupportedThings) {
  EXPECT_EQ(import_changed([](auto& m) {
              node(m, 2).set_op_type("Frobnicate");
              node(m, 0).set_domain("com.example");
            }),
            "the model uses 2 operators of opset 17 that are not supported\n"
            "Frobnicate: 1 node: 'the_Relu'\n"
            "com.example::MatMul: 1 node: 'the_MatMul'");
  EXPECT_EQ(import_changed([](auto& m) {
              for (int i = 0; i < 3; ++i) node(m, i).set_op_type("Unique");
              node(m, 0).set_op_type("SequenceMap");
            }),
            "the model uses 2 operators of opset 17 that are not supported\n"
            "SequenceMap (repeats a graph): 1 node: 'the_MatMul'\n"
            "Unique (its shape depends on the data): 2 nodes: 'the_Add', 'the_Relu'");
  EXPECT_EQ(import_changed([](auto& m) { m.add_training_info(); }),
            "training_info has no Gradient");
  EXPECT_EQ(import_changed([](auto& m) { m.clear_opset_import(); }),
            "the model names no version of the standard operators");
  EXPECT_EQ(import_changed([](auto& m) { m.clear_graph(); }), "the model has no graph");
}

// A function f of domain d: y = g(x), and g of the same domain by `make_body`.
void add_functions(onnx::ModelProto& m, const std::string& callee, int64_t opset = 17) {
  for (const std::string name : {"f", "g"}) {
    onnx::FunctionProto& function = *m.add_functions();
    function.set_name(name);
    function.set_domain("d");
    function.add_input("x");
    function.add_output("y");
    function.add_opset_import()->set_version(opset);
    onnx::NodeProto& body = *function.add_node();
    body.set_op_type(name == "f" ? "g" : callee);
    if (name == "f" || callee == "f") body.set_domain("d");
    body.add_input("x");
    body.add_output("y");
  }
  m.mutable_graph()->mutable_node(2)->set_op_type("f");
  m.mutable_graph()->mutable_node(2)->set_domain("d");
}

TEST_F(HostileOnnx, Functions) {
  EXPECT_EQ(import_changed([](auto& m) { add_functions(m, "Relu"); }), "ok");
  EXPECT_EQ(import_changed([](auto& m) { add_functions(m, "f"); }),
            "the function 'f' calls itself");
  EXPECT_EQ(import_changed([](auto& m) {
              add_functions(m, "f0");
              for (int i = 0; i < 70; ++i) {
                onnx::FunctionProto& function = *m.add_functions();
                function = m.functions(0);
                function.set_name(fmt::format("f{}", i));
                onnx::NodeProto& body = *function.mutable_node(0);
                body.set_op_type(i < 69 ? fmt::format("f{}", i + 1) : "Relu");
                body.set_domain(i < 69 ? "d" : "");
              }
              for (int i = 0; i < 2; ++i) m.mutable_functions(i)->mutable_node(0)->set_domain("d");
            }),
            "the function 'f62' is called 64 functions deep, which is not supported");
  // Mish is of opset 18, and the model of 17.
  EXPECT_EQ(import_changed([](auto& m) { add_functions(m, "Mish", 18); }), "ok");
  EXPECT_NE(import_changed([](auto& m) { add_functions(m, "Mish", 17); }), "ok");
  EXPECT_EQ(import_changed([](auto& m) {
              add_functions(m, "Relu");
              add_functions(m, "Relu");
            }),
            "the function 'f' is there twice");
  EXPECT_EQ(import_changed([](auto& m) {
              add_functions(m, "Relu");
              node(m, 2).add_input("x");
            }),
            "node 'the_Relu' calls the function 'f' with 2 inputs and 1 outputs; it has 1 and 1");
  // Each of 40 functions calls the next one twice: 2^40 nodes.
  EXPECT_EQ(import_changed([](auto& m) {
              add_functions(m, "Relu");
              for (int k = 0; k < 40; ++k) {
                onnx::FunctionProto& function = *m.add_functions();
                function.set_name(k == 0 ? "h" : "h" + std::to_string(k));
                function.set_domain("d");
                function.add_input("x");
                function.add_output("y");
                for (int twice = 0; twice < 2; ++twice) {
                  onnx::NodeProto& body = *function.add_node();
                  body.set_op_type("h" + std::to_string(k + 1));
                  body.set_domain("d");
                  body.add_input("x");
                  body.add_output(twice == 0 ? "t" : "y");
                }
              }
              node(m, 2).set_op_type("h");
            }),
            "its functions make more than 500000 nodes");
}

TEST_F(HostileOnnx, IllTypedNodes) {
  EXPECT_EQ(import_changed([](auto& m) {
              m.mutable_graph()->mutable_initializer()->DeleteSubrange(0, 1);
              add_tensor(*m.mutable_graph(), "fc.weight", {5, 4});
            }),
            "node 'the_MatMul' (MatMul): cannot multiply [2,3] by [5,4]");
  EXPECT_EQ(import_changed([](auto& m) {
              m.mutable_graph()->mutable_initializer()->RemoveLast();
              add_tensor(*m.mutable_graph(), "fc.bias", {7});
            }),
            "node 'the_Add' (Add): the shapes [2,4] and [7] do not broadcast");
  EXPECT_EQ(import_changed([](auto& m) { node(m, 2).add_input("h"); }),
            "node 'the_Relu' (Relu): has 2 inputs; at most 1 are possible");
  EXPECT_EQ(import_changed([](auto& m) { node(m, 1).mutable_input()->RemoveLast(); }),
            "node 'the_Add' (Add): has no input 1; it needs 2");
  EXPECT_EQ(import_changed([](auto& m) { node(m, 2).add_output("second"); }),
            "node 'the_Relu' (Relu): its output 1 is not supported");
}

// What an attribute says is not lost, unless it says nothing.
TEST_F(HostileOnnx, AttributesThatNoRuleReads) {
  const auto with = [&](const std::string& name, auto value) {
    return import_changed([&](onnx::ModelProto& m) {
      onnx::AttributeProto* attr = node(m, 2).add_attribute();
      attr->set_name(name);
      if constexpr (std::is_integral_v<decltype(value)>) {
        attr->set_type(onnx::AttributeProto::INT);
        attr->set_i(value);
      } else {
        attr->set_type(onnx::AttributeProto::FLOAT);
        attr->set_f(value);
      }
      if (name == "axis") node(m, 2).set_op_type("Softmax");
    });
  };
  EXPECT_EQ(with("upper_bound", 6),
            "node 'the_Relu' (Relu): its attribute 'upper_bound' is not supported");
  EXPECT_EQ(with("axis", 1), "ok");
  EXPECT_EQ(with("axis", 1.0F), "node 'the_Relu' (Softmax): its attribute 'axis' is not supported");
  EXPECT_EQ(with("stash_type", 1), "ok");
  EXPECT_EQ(with("stash_type", 16),
            "node 'the_Relu' (Relu): its attribute 'stash_type' is not supported");
  EXPECT_EQ(with("saturate", 1), "ok");
}

// Arithmetic that the importer does itself.
TEST_F(HostileOnnx, DivisionsByZero) {
  for (const std::string op : {"Div", "Mod"}) {
    for (const int64_t by : {int64_t{0}, int64_t{-1}}) {
      import_changed([&](onnx::ModelProto& m) {
        add_ints(*m.mutable_graph(), "a", {INT64_MIN, 1});
        add_ints(*m.mutable_graph(), "b", {by, by});
        add_node(*m.mutable_graph(), op, {"a", "b"}, {"out"});
        m.mutable_graph()->mutable_output(0)->set_name("out");
      });  // any answer will do
    }
  }
}

// A small file must not make the importer fill the memory.
TEST_F(HostileOnnx, HugeConstants) {
  auto range_to = [&](int64_t end) {
    return import_changed([&](onnx::ModelProto& m) {
      for (const auto& [name, value] :
           {std::pair("from", int64_t{0}), std::pair("to", end), std::pair("by", int64_t{1})}) {
        add_ints(*m.mutable_graph(), name, {value});
        m.mutable_graph()->mutable_initializer()->rbegin()->clear_dims();
      }
      add_node(*m.mutable_graph(), "Range", {"from", "to", "by"}, {"out"});
      m.mutable_graph()->mutable_output(0)->set_name("out");
    });
  };
  EXPECT_EQ(range_to(10), "ok");
  EXPECT_EQ(range_to(1 << 27), "node 'the_Range' (Range): a range of 134217728 elements");
  EXPECT_EQ(import_changed([](onnx::ModelProto& m) {
              add_ints(*m.mutable_graph(), "depth", {int64_t{1} << 40});
              add_ints(*m.mutable_graph(), "ids", {1, 2});
              add_ints(*m.mutable_graph(), "values", {0, 1});
              add_node(*m.mutable_graph(), "OneHot", {"ids", "depth", "values"}, {"out"});
              m.mutable_graph()->mutable_output(0)->set_name("out");
            }),
            "node 'the_OneHot' (OneHot): an impossible depth");
}

// One node between the linear layer and the output.
TEST_F(HostileOnnx, ImpossibleShapes) {
  auto with = [&](const std::string& op, const std::vector<int64_t>& values) {
    return import_changed([&](onnx::ModelProto& m) {
      add_ints(*m.mutable_graph(), "shape", values);
      add_node(*m.mutable_graph(), op, {"z", "shape"}, {"out"});
      m.mutable_graph()->mutable_output(0)->set_name("out");
    });
  };
  const std::string reshape = "node 'the_Reshape' (Reshape): ";
  EXPECT_EQ(with("Reshape", {4, 2}), "ok");
  EXPECT_EQ(with("Reshape", {-1, -1}), reshape + "the shape [-1,-1] leaves two dims open");
  EXPECT_EQ(with("Reshape", {3, -1}),
            reshape + "[2,4] has 8 elements and cannot take the shape [3,-1]");
  EXPECT_EQ(with("Reshape", {-5}), reshape + "a negative dim in the shape [-5]");
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(with("Reshape", {huge, huge}),
            reshape + "the shape [4611686018427387904,4611686018427387904] is too large");
  EXPECT_EQ(with("Expand", {huge, 2, 4}),
            "node 'the_Expand' (Expand): the shape [4611686018427387904,2,4] is too large");
  EXPECT_EQ(with("Expand", {3, 4}),
            "node 'the_Expand' (Expand): [2,4] cannot be expanded to [3,4]");
  EXPECT_EQ(with("Tile", {int64_t{1} << 51, 1}),
            "node 'the_Tile' (Tile): the shape [4503599627370496,4] is too large");
}

}  // namespace
}  // namespace piper::hostile_import_test
