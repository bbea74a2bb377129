#include <cstring>
#include <map>
#include <set>

#include "rank_loop.h"
#include "raw.h"

namespace piper {
namespace {

constexpr int32_t kParameterChannel = kOwnChannels + 2;
constexpr int32_t kWantedChannel = kOwnChannels + 3;

// A parameter as far as it is here.
struct Gathered {
  TensorType type;
  std::vector<std::string> names;  // its own and its aliases
  std::vector<std::byte> data;
  std::set<std::string> held;  // of whom it has the elements
};
using ByName = std::map<std::string, Gathered>;

bool has(const ByName& all, const ParameterView& view) {
  const auto found = all.find(view.name);
  return found != all.end() && found->second.held.contains(to_string(view.held));
}

// Unless somebody already gave it.
void take(ByName& all, const ParameterView& view) {
  if (has(all, view)) return;
  Gathered& gathered = all[view.name];
  if (gathered.names.empty()) {
    gathered.type = view.type();
    gathered.names = view.aliases;
    gathered.names.push_back(view.name);
    gathered.data.resize(static_cast<size_t>(gathered.type.bytes()));
  }
  gathered.held.insert(to_string(view.held));
  const int64_t size = info(gathered.type.dtype).bytes;
  view.held.for_each_run([&](const Held::Run& run) {
    std::memcpy(gathered.data.data() + run.whole * size, view.data + run.held * size,
                static_cast<size_t>(run.count * size));
  });
}

// Aliases share the data; nothing is copied.
std::vector<NamedTensor> in_order(ByName all) {
  std::map<std::string, NamedTensor> by_name;
  for (auto& [name, gathered] : all) {
    const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(gathered.data));
    const Bytes data{owner, owner->data(), owner->size()};
    for (const std::string& each : gathered.names)
      if (each == name || !all.contains(each))
        by_name.try_emplace(each, NamedTensor{each, gathered.type, data});
  }
  std::vector<NamedTensor> tensors;
  for (auto& [name, tensor] : by_name) tensors.push_back(std::move(tensor));
  return tensors;
}

// ---- Views as bytes, between processes of one program -------------------------------------------

void put(std::string& to, int64_t value) { to.append(reinterpret_cast<const char*>(&value), 8); }
void put(std::string& to, const std::string& text) {
  put(to, static_cast<int64_t>(text.size()));
  to += text;
}

void put(std::string& to, const Held& held) {
  put(to, static_cast<int64_t>(held.whole.dtype));
  put(to, std::ssize(held.whole.shape));
  for (int64_t dim : held.whole.shape) put(to, dim);
  put(to, std::ssize(held.blocks));
  for (const auto& [dim, outer, size, index] : held.blocks)
    for (int64_t number : {int64_t{dim}, outer, size, index}) put(to, number);
  put(to, held.first);
  put(to, held.count);
}

std::string encode(std::span<const ParameterView> views) {
  std::string text;
  for (const ParameterView& view : views) {
    put(text, view.name);
    put(text, view.held);
    put(text, static_cast<int64_t>(view.aliases.size()));
    for (const std::string& alias : view.aliases) put(text, alias);
  }
  return text;
}

struct Reader {
  std::string_view text;
  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, text.data(), 8);
    text.remove_prefix(8);
    return value;
  }
  std::string string() {
    size_t size = static_cast<size_t>(number());
    std::string value(text.substr(0, size));
    text.remove_prefix(size);
    return value;
  }
  Held held() {
    Held held;
    held.whole.dtype = static_cast<DType>(number());
    held.whole.shape.resize(static_cast<size_t>(number()));
    for (int64_t& dim : held.whole.shape) dim = number();
    held.blocks.resize(static_cast<size_t>(number()));
    for (Held::Block& block : held.blocks) {
      block.dim = static_cast<int32_t>(number());
      for (int64_t* value : {&block.outer, &block.size, &block.index}) *value = number();
    }
    held.first = number();
    held.count = number();
    return held;
  }
};

std::vector<ParameterView> decode(std::string_view text) {
  std::vector<ParameterView> views;
  for (Reader reader{text}; !reader.text.empty();) {
    ParameterView& view = views.emplace_back();
    view.name = reader.string();
    view.held = reader.held();
    view.aliases.resize(static_cast<size_t>(reader.number()));
    for (std::string& alias : view.aliases) alias = reader.string();
  }
  return views;
}

// What a rank other than 0 does: says what it has, sends what is wanted.
Status offer(std::span<const ParameterView> views, Transport& transport) {
  PIPER_ASSIGN(int32_t to,
               transport.add_send(0, kParameterChannel, static_cast<int64_t>(views.size()) + 2));
  PIPER_ASSIGN(int32_t from, transport.add_recv(0, kWantedChannel));
  std::string text = encode(views);
  int64_t size = static_cast<int64_t>(text.size());
  PIPER_TRY(transport.send(to, raw(&size), 8));
  PIPER_TRY(transport.send(to, raw(text.data()), size));
  std::string wanted(views.size(), '\0');
  PIPER_TRY(transport.recv(from, raw(wanted.data()), static_cast<int64_t>(wanted.size())));
  for (size_t i = 0; i < views.size(); ++i) {
    if (wanted[i] == 0) continue;
    PIPER_TRY(transport.send(to, views[i].data, views[i].bytes()));
  }
  return transport.wait_sends();
}

Status fetch(int64_t rank, Transport& transport, ByName& all) {
  PIPER_ASSIGN(int32_t from, transport.add_recv(rank, kParameterChannel));
  PIPER_ASSIGN(int32_t to, transport.add_send(rank, kWantedChannel, 1));
  int64_t size = 0;
  PIPER_TRY(transport.recv(from, raw(&size), 8));
  std::string text(static_cast<size_t>(size), '\0');
  PIPER_TRY(transport.recv(from, raw(text.data()), size));
  std::vector<ParameterView> views = decode(text);
  std::string wanted;
  for (const ParameterView& view : views) wanted += has(all, view) ? '\0' : '\1';
  PIPER_TRY(transport.send(to, raw(wanted.data()), static_cast<int64_t>(wanted.size())));
  for (size_t i = 0; i < views.size(); ++i) {
    if (wanted[i] == 0) continue;
    std::vector<std::byte> data(static_cast<size_t>(views[i].bytes()));
    PIPER_TRY(transport.recv(from, data.data(), views[i].bytes()));
    views[i].data = data.data();
    take(all, views[i]);
  }
  return transport.wait_sends();
}

}  // namespace

std::vector<NamedTensor> collect_parameters(std::span<const Executor* const> executors) {
  ByName all;
  for (const Executor* executor : executors) {
    for (const ParameterView& view : executor->parameters()) take(all, view);
  }
  return in_order(std::move(all));
}

Result<std::vector<NamedTensor>> gather_parameters(const Executor& executor, Transport& transport) {
  std::vector<ParameterView> own = executor.parameters();
  if (transport.rank() != 0) {
    PIPER_TRY(offer(own, transport));
    return std::vector<NamedTensor>{};
  }
  ByName all;
  for (const ParameterView& view : own) take(all, view);
  for (int64_t rank = 1; rank < transport.world(); ++rank) PIPER_TRY(fetch(rank, transport, all));
  return in_order(std::move(all));
}

}  // namespace piper
