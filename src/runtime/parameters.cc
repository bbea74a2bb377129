#include <cstring>
#include <map>

#include "rank_loop.h"

namespace piper {
namespace {

constexpr int32_t kGatherChannel = (1 << 28) + 2;
constexpr int32_t kWantedChannel = (1 << 28) + 3;

using ByName = std::map<std::string, NamedTensor>;

// Under its name and its aliases, unless somebody already gave it.
void take(ByName& all, const ParameterView& view, const Bytes& data) {
  all.try_emplace(view.name, NamedTensor{view.name, view.type, data});
  for (const std::string& alias : view.aliases) {
    all.try_emplace(alias, NamedTensor{alias, view.type, data});
  }
}

std::vector<NamedTensor> in_order(ByName all) {
  std::vector<NamedTensor> tensors;
  for (auto& [name, tensor] : all) tensors.push_back(std::move(tensor));
  return tensors;
}

Bytes copy_of(const ParameterView& view) {
  return Bytes::copy_of(view.data, static_cast<size_t>(view.type.bytes()));
}

// ---- Views as bytes, between processes of one program -------------------------------------------

void put(std::string& to, int64_t value) { to.append(reinterpret_cast<const char*>(&value), 8); }
void put(std::string& to, const std::string& text) {
  put(to, static_cast<int64_t>(text.size()));
  to += text;
}

std::string encode(std::span<const ParameterView> views) {
  std::string text;
  for (const ParameterView& view : views) {
    put(text, view.name);
    put(text, static_cast<int64_t>(view.type.dtype));
    put(text, static_cast<int64_t>(view.type.shape.size()));
    for (int64_t dim : view.type.shape) put(text, dim);
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
};

std::vector<ParameterView> decode(std::string_view text) {
  std::vector<ParameterView> views;
  for (Reader reader{text}; !reader.text.empty();) {
    ParameterView& view = views.emplace_back();
    view.name = reader.string();
    view.type.dtype = static_cast<DType>(reader.number());
    view.type.shape.resize(static_cast<size_t>(reader.number()));
    for (int64_t& dim : view.type.shape) dim = reader.number();
    view.aliases.resize(static_cast<size_t>(reader.number()));
    for (std::string& alias : view.aliases) alias = reader.string();
  }
  return views;
}

template <class T>
std::byte* raw(T* data) {
  return reinterpret_cast<std::byte*>(data);
}

// What a rank other than 0 does: says what it has, sends what is wanted.
Status offer(std::span<const ParameterView> views, Transport& transport) {
  PIPER_ASSIGN(int32_t to,
               transport.add_send(0, kGatherChannel, static_cast<int64_t>(views.size()) + 2));
  PIPER_ASSIGN(int32_t from, transport.add_recv(0, kWantedChannel));
  std::string text = encode(views);
  int64_t size = static_cast<int64_t>(text.size());
  PIPER_TRY(transport.send(to, raw(&size), 8));
  PIPER_TRY(transport.send(to, raw(text.data()), size));
  std::string wanted(views.size(), '\0');
  PIPER_TRY(transport.recv(from, raw(wanted.data()), static_cast<int64_t>(wanted.size())));
  for (size_t i = 0; i < views.size(); ++i) {
    if (wanted[i] == 0) continue;
    PIPER_TRY(transport.send(to, views[i].data, views[i].type.bytes()));
  }
  return transport.wait_sends();
}

Status fetch(int64_t rank, Transport& transport, ByName& all) {
  PIPER_ASSIGN(int32_t from, transport.add_recv(rank, kGatherChannel));
  PIPER_ASSIGN(int32_t to, transport.add_send(rank, kWantedChannel, 1));
  int64_t size = 0;
  PIPER_TRY(transport.recv(from, raw(&size), 8));
  std::string text(static_cast<size_t>(size), '\0');
  PIPER_TRY(transport.recv(from, raw(text.data()), size));
  std::vector<ParameterView> views = decode(text);
  std::string wanted;
  for (const ParameterView& view : views) wanted += all.contains(view.name) ? '\0' : '\1';
  PIPER_TRY(transport.send(to, raw(wanted.data()), static_cast<int64_t>(wanted.size())));
  for (size_t i = 0; i < views.size(); ++i) {
    if (wanted[i] == 0) continue;
    std::vector<std::byte> data(static_cast<size_t>(views[i].type.bytes()));
    PIPER_TRY(transport.recv(from, data.data(), views[i].type.bytes()));
    take(all, views[i], Bytes::copy_of(data.data(), data.size()));
  }
  return transport.wait_sends();
}

}  // namespace

std::vector<NamedTensor> collect_parameters(std::span<const Executor* const> executors) {
  ByName all;
  for (const Executor* executor : executors) {
    for (const ParameterView& view : executor->parameters()) {
      if (!all.contains(view.name)) take(all, view, copy_of(view));
    }
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
  for (const ParameterView& view : own) take(all, view, copy_of(view));
  for (int64_t rank = 1; rank < transport.world(); ++rank) PIPER_TRY(fetch(rank, transport, all));
  return in_order(std::move(all));
}

}  // namespace piper
