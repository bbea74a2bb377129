// Plans: role programs as bytes and as text, and the files of a set.
#include <plan.pb.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "piper/base/data.h"
#include "piper/inspect/picture.h"
#include "piper/inspect/summary.h"
#include "piper/plan/bundle.h"
#include "piper/plan/verify.h"
#include "protobuf_change.h"
#include "targets.h"

namespace piper::fuzz {
namespace {

using Json = nlohmann::ordered_json;
using Mesh = std::vector<std::pair<std::string, int64_t>>;
constexpr int64_t kMaxWorld = 64;  // more ranks cost time and show nothing new

// formats/plan.md: magic, version, size, digest, payload.
std::string wrap(std::string_view magic, std::string_view payload) {
  std::string out(magic);
  for (int i = 0; i < 4; ++i) out += static_cast<char>(kPlanFormatVersion >> (8 * i));
  for (int i = 0; i < 8; ++i) out += static_cast<char>(payload.size() >> (8 * i));
  return out + digest(payload) + std::string(payload);
}

std::string print(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The manifest with the set id that its other fields have.
std::string with_set_id(const Json& json) {
  Json without = Json::object(), out = Json::object();
  for (const auto& [key, value] : json.items())
    if (key != "set_id" && key != "model" && key != "strategy") without[key] = value;
  for (const auto& [key, value] : json.items())
    out[key] = key == "set_id" ? Json(digest(print(without))) : value;
  return print(out);
}

std::string manifest_of(const Mesh& mesh, const std::string& role, std::string_view payload,
                        std::string_view params) {
  Json json = {{"format", "piper plan set"},
               {"format_version", kPlanFormatVersion},
               {"set_id", ""},
               {"compiler", "fuzzer"},
               {"model", "m"},
               {"model_digest", ""},
               {"strategy", "s"},
               {"strategy_digest", ""},
               {"strategy_text", ""},
               {"seed", 0U},
               {"mesh", Json::array()},
               {"role_axes", Json::array()},
               {"roles", {role}},
               {"files", Json::object()},
               {"predictions", Json::object()}};
  for (const auto& [name, size] : mesh) json["mesh"].push_back(Json::array({name, size}));
  json["files"]["params/init.safetensors"] = digest(params);
  json["files"]["roles/" + role + ".pb"] = digest(payload);
  return with_set_id(json);
}

std::string rank_payload(const Mesh& mesh, const std::string& role, const std::string& set_id) {
  proto::RankHeader header;
  for (size_t a = 0; a < mesh.size(); ++a) header.add_coordinates(0);
  header.set_role(role);
  header.set_set_id(set_id);
  return header.SerializeAsString();
}

// A file with what a role wants to load, all zeros. Written by hand, for write_safetensors waits
// for the disk.
std::string zeros_for(const proto::RoleProgram& message) {
  Json header = Json::object();
  int64_t end = 0;
  for (const auto& tensor : message.tensors()) {
    if (tensor.init().empty() || header.contains(tensor.init()) || header.size() > 100) continue;
    if (tensor.copy_of() >= 0) continue;  // its parameter has it
    if (tensor.type().dtype() < 0 || tensor.type().dtype() >= kNumDTypes) continue;
    const DTypeInfo& type = info(static_cast<DType>(tensor.type().dtype()));
    int64_t bytes = type.bytes;
    const auto& shape = tensor.whole_size() > 0 ? tensor.whole() : tensor.type().shape();
    for (const int64_t dim : shape)
      bytes = dim < 0 || dim > 1 << 16 || bytes > 1 << 16 ? 1 << 20 : bytes * dim;
    if (bytes > 1 << 18) continue;
    header[tensor.init()] = {
        {"dtype", type.safetensors}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  const std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i));
  return out + text + std::string(static_cast<size_t>(end), '\0');
}

// All ranks run the first role, or each its share of the roles in order.
void verify(std::vector<RoleProgram> roles) {
  PlanSet set;
  int64_t world = 1;
  for (const auto& [name, size] : roles[0].mesh) {
    if (size < 1 || __builtin_mul_overflow(world, size, &world) || world > kMaxWorld) return;
  }
  const auto count = static_cast<int64_t>(roles.size());
  if (count > world) return;
  for (int64_t rank = 0; rank < world; ++rank)
    set.role_of_rank.push_back(static_cast<int32_t>(rank * count / world));
  set.manifest.mesh = roles[0].mesh;
  set.roles = std::move(roles);
  (void)verify_plan_set(set);
  for (const PictureCosts costs : {PictureCosts::kFlops, PictureCosts::kUnits})
    if (const auto picture = make_picture(set, costs)) {
      (void)draw_text(*picture, {.width = 80});
      (void)draw_svg(*picture, "fuzz");
    }
}

// A role that passed its checks prints, and reads back the same.
void check_text(const RoleProgram& role) {
  const std::string text = print_plan(role);
  const Result<RoleProgram> again = parse_plan(text);
  PIPER_CHECK(again.ok(), "{}", print_error(again.error()));
  PIPER_CHECK(print_plan(*again) == text);
}

// So does what it says that the first rank holds.
void check_held(const RoleProgram& role) {
  const std::vector<int64_t> first(role.mesh.size());
  for (const Tensor& tensor : role.tensors) {
    const Held held = held_of(role, tensor, first);
    for (const int64_t at : {int64_t{0}, held.count - 1}) {
      if (held.count == 0) continue;
      const Held::Run run = held.run_at(at);
      PIPER_CHECK(run.count > 0 && run.held + run.count <= held.count);
      PIPER_CHECK(run.whole + run.count <= num_elements(held.whole.shape), "{}", to_string(held));
    }
  }
}

// A set of one role in a folder, one of whose files is then exchanged.
class SetFolder {
 public:
  explicit SetFolder(std::string_view name) : folder_(name) {
    for (const char* below : {"params", "roles"})
      std::filesystem::create_directories(folder_.path(below));
  }
  void write(std::string_view payload) {
    proto::RoleProgram message;
    Mesh mesh;
    if (message.ParseFromArray(payload.data(), static_cast<int>(payload.size())))
      for (const auto& axis : message.mesh()) mesh.emplace_back(axis.name(), axis.size());
    const std::string params = zeros_for(message);
    folder_.write("params/init.safetensors", params);
    if (!role_.empty()) std::filesystem::remove(folder_.path("roles/" + role_ + ".pb"));
    role_ = digest(payload);
    const std::string file = wrap("PIPRROL1", payload);
    manifest_ = manifest_of(mesh, role_, file, params);
    const Json json = Json::parse(manifest_);
    rank_ = rank_payload(mesh, role_, json["set_id"]);
    folder_.write("roles/" + role_ + ".pb", file);
    folder_.write("manifest.json", manifest_);
    folder_.write("rank0.plan", wrap("PIPRPLN1", rank_));
  }
  const std::string& role() const { return role_; }
  const Folder& folder() const { return folder_; }

 private:
  Folder folder_;
  std::string role_, manifest_, rank_;
};

// One rank, one buffer: what the files around it say is what is tried here.
std::string small_role() {
  proto::RoleProgram message;
  auto* axis = message.add_mesh();
  axis->set_name("dp");
  axis->set_size(1);
  message.add_streams()->set_name("compute");
  message.add_workspace_bytes(0);
  message.set_batch(1);
  return message.SerializeAsString();
}

}  // namespace

static Result<RankPlan> read_role(std::string_view payload) {
  static SetFolder set("plan");
  set.write(payload);
  return read_rank_plan(set.folder().path("rank0.plan"));
}

std::string why_not_read(std::string_view role) {
  const Result<RankPlan> plan = read_role(role);
  return plan ? "" : plan.error().message;
}

void run_plan(std::string_view payload) {
  const Result<RankPlan> plan = read_role(payload);
  if (!plan) return;
  const RoleProgram& role = plan->set.roles.at(0);
  check_text(role);
  check_held(role);
  verify({role});
}

std::string change_plan(std::string_view payload, std::mt19937& random) {
  proto::RoleProgram message;
  if (!message.ParseFromArray(payload.data(), static_cast<int>(payload.size())))
    return std::string(payload);
  change_message(message, random);
  return message.SerializeAsString();
}

void run_plan_text(std::string_view text) {
  constexpr std::string_view kStart = "plan batch=";
  std::vector<RoleProgram> roles;
  while (!text.empty()) {
    const size_t end = std::min(text.find(kStart, 1), text.size());
    const Result<RoleProgram> role = parse_plan(text.substr(0, end));
    if (!role || !check_role(*role)) return;
    check_text(*role);
    check_held(*role);
    roles.push_back(*role);
    text.remove_prefix(end);
  }
  if (!roles.empty()) verify(std::move(roles));
}

void run_plan_set(std::string_view input) {
  static SetFolder set("plan_set");
  if (input.empty()) return;
  set.write(small_role());
  const char kind = input[0];
  const std::string_view rest = input.substr(1);
  if (kind == 'm') {
    // What is nested deep is for 'M': here it would be copied, level by level.
    const auto is_flat = [](int depth, Json::parse_event_t, const Json&) { return depth <= 8; };
    const Json json = Json::parse(rest.begin(), rest.end(), is_flat, false);
    set.folder().write("manifest.json", json.is_object() ? with_set_id(json) : std::string(rest));
  } else if (kind == 'M') {
    set.folder().write("manifest.json", rest);
  } else if (kind == 'h') {
    set.folder().write("rank0.plan", wrap("PIPRPLN1", rest));
  } else if (kind == 'H') {
    set.folder().write("rank0.plan", rest);
  } else if (kind == 'r') {
    set.folder().write("roles/" + set.role() + ".pb", rest);
  } else {
    set.folder().write("params/init.safetensors", rest);
  }
  Result<PlanSet> read = read_plan_set(set.folder().path(""));
  if (read) (void)load_params(*read);
  if (read) (void)summarise(read->directory);
}

}  // namespace piper::fuzz
