// What each field must be by itself, as its list says: an id is a position in its table, and a
// number is not negative unless -1 or less means something. All other checks may use them.
#include "bad.h"
#include "fields.h"
#include "files.h"

namespace piper {
namespace {

constexpr const char* kTables[] = {"",       "axis",   "stream",  "group", "communicator",
                                   "tensor", "buffer", "program", "sum",   "arg"};

class FieldCheck {
 public:
  explicit FieldCheck(const RoleProgram& role)
      : sizes_{0,
               role.mesh.size(),
               role.streams.size(),
               role.groups.size(),
               role.communicators.size(),
               role.tensors.size(),
               role.buffers.size(),
               role.programs.size(),
               role.sum_targets.size(),
               0} {}

  const std::string& wrong() const { return wrong_; }

  template <class X>
  void message(const X& from) {
    if constexpr (std::is_same_v<X, Instruction>)
      sizes_[static_cast<size_t>(Table::kArgs)] = from.args.size();
    [[maybe_unused]] static const X normal{};
    const auto visit = [&](const char* name, auto member, const auto&... how) {
      field(name, from.*member, normal.*member, how...);
    };
    each_field(Of<X>(), [&](const char* name, auto member, const auto&... how) {
      if constexpr (std::is_member_pointer_v<decltype(member)>)
        visit(name, member, how...);
      else
        member.each_member(visit);
    });
  }

 private:
  // Returns the name of the object whose field is at fault.
  static std::string place(const char*, size_t i, const Instruction& one) {
    return fmt::format("instruction {} '{}' ({})", i, quote_control(one.label),
                       to_string(one.kind));
  }
  static std::string place(const char*, size_t i, const Program& one) {
    return fmt::format("program {} '{}'", i, quote_control(one.label));
  }
  static std::string place(const char*, size_t i, const Tensor& one) {
    return fmt::format("tensor {} '{}'", i, quote_control(one.name));
  }
  template <class X>
  static std::string place(const char* name, size_t i, const X&) {
    return fmt::format("{}[{}]", name, i);
  }

  void number(const char* name, int64_t value, int64_t normal, const How& how) {
    if (!wrong_.empty() || how.any) return;
    const size_t count = sizes_[static_cast<size_t>(how.table)];
    if (value < (how.or_less ? -1 : std::min<int64_t>(0, normal)))
      wrong_ = fmt::format("its {} is {}", name, value);
    else if (how.table != Table::kNone && value >= static_cast<int64_t>(count))
      wrong_ = fmt::format("there is no {} {}", kTables[static_cast<size_t>(how.table)], value);
  }

  template <class T>
  void field(const char* name, const T& value, const T& normal, const How& how = {}) {
    if constexpr (std::is_integral_v<T>) {
      number(name, value, normal, how);
    } else if constexpr (Listed<T>) {
      message(value);
    } else if constexpr (requires { value.data()->begin(); } || !ListOf<T>) {
      // Texts, attributes, enumerations and reals may be anything.
    } else {
      for (size_t i = 0; i < value.size(); ++i) element(name, i, value[i], how);
    }
  }
  template <class T>
  void element(const char* name, size_t i, const T& value, const How& how) {
    if constexpr (Listed<T>) {
      if (!wrong_.empty()) return;
      message(value);
      if (!wrong_.empty()) wrong_ = place(name, i, value) + ": " + wrong_;
    } else {
      number(name, value, 0, how);
    }
  }

  std::array<size_t, std::size(kTables)> sizes_;
  std::string wrong_;
};

}  // namespace

Status check_fields(const RoleProgram& role) {
  FieldCheck check(role);
  check.message(role);
  if (check.wrong().empty()) return ok_status();
  return bad("{}", check.wrong());
}

}  // namespace piper
