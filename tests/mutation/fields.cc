#include "mutation/fields.h"

#include "bundle/fields.h"
#include "mutation/places.h"

namespace piper::mutation {
namespace {

// Counts the values of fields, and stops at one of them.
template <class At>
class Walk {
 public:
  explicit Walk(At at) : at_(at) {}

  template <class X>
  void message(X& one, const std::string& name) {
    const auto visit = [&](const char* field, auto member, const auto&...) {
      value(one.*member, name + " " + field);
    };
    each_field(Of<std::remove_const_t<X>>(), [&](const char* field, auto member, const auto&...) {
      if constexpr (std::is_member_pointer_v<decltype(member)>)
        visit(field, member);
      else
        member.each_member(visit);
    });
  }

 private:
  static std::string named(const std::string& list, const Instruction& one) {
    return fmt::format("{} {}", list.substr(list.find(' ') + 1), to_string(one.kind));
  }
  static std::string named(const std::string&, const ProgramOp& op) { return "op " + op.op; }
  template <class X>
  static std::string named(const std::string& list, const X&) {
    return list;
  }

  // In whatever blocks labels are counted, their number is the same; and a gradient has no part
  // that shows how many numbers a lookup has in all, of which the last ones may be filled up.
  static bool has_meaning(const Instruction& one) { return !one.label.starts_with("count"); }
  static bool has_meaning(const ProgramOp& op) {
    return !op.op.ends_with("Grad") || !op.attrs.find("whole");
  }
  template <class X>
  static bool has_meaning(const X&) {
    return true;
  }

  template <class T>
  void value(T& one, const std::string& name) {
    if constexpr (Listed<std::remove_const_t<T>>) {
      message(one, name);
    } else if constexpr (ListOf<std::remove_const_t<T>>) {
      using Item = typename std::remove_const_t<T>::value_type;
      at_(count_++, name, one);  // as a list
      if constexpr (Listed<Item>) {
        for (auto& item : one)
          if (has_meaning(item)) message(item, named(name, item));
      } else if constexpr (!std::is_same_v<Item, bool>) {
        for (auto& item : one) value(item, name);
      }
    } else {
      at_(count_++, name, one);
    }
  }

  At at_;
  size_t count_ = 0;
};

using Said = std::optional<std::string>;

class Change {
 public:
  explicit Change(Random& random) : random_(random) {}

  Said operator()(bool& one) {
    one = !one;
    return one ? "true" : "false";
  }
  Said operator()(std::string& one) {
    if (!one.empty() && one.size() < 64 && below(random_, 2) == 0) {
      one.pop_back();
    } else {
      one += one.empty() ? 'x' : one.back();
    }
    return quote_control(one);
  }
  Said operator()(double& one) {
    one = one * 2 + 0.25;
    return std::to_string(one);
  }
  Said operator()(Attrs& one) {
    if (one.items().empty()) return std::nullopt;
    auto [name, value] = one.items()[below(random_, one.items().size())];
    const Said said = std::visit([&](auto& of) { return (*this)(of); }, value);
    one.set(name, value);
    return said ? Said(name + " " + *said) : said;
  }
  template <class T>
  Said operator()(std::vector<T>& one) {
    if (one.empty()) return std::nullopt;
    if (one.size() > 1 && below(random_, 2) == 0) {
      const size_t i = below(random_, one.size()), j = below(random_, one.size());
      if (one[i] == one[j]) return std::nullopt;
      const T kept = one[i];
      one[i] = one[j], one[j] = kept;
      return fmt::format("{} and {} change places", i, j);
    }
    const size_t i = below(random_, one.size());
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      if (below(random_, 2) == 0) return (*this)(one[i]);
    one.erase(one.begin() + static_cast<std::ptrdiff_t>(i));
    return fmt::format("without {}", i);
  }
  Said operator()(DType& one) {
    constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kI64, DType::kBool};
    one = kTypes[below(random_, std::size(kTypes))];
    return info(one).name;
  }
  Said operator()(TaskPass& one) {
    one = one == TaskPass::kF ? TaskPass::kB : TaskPass::kF;
    return name_of(one);
  }
  template <NamedEnum T>
  Said operator()(T& one) {
    const T other = static_cast<T>(below(random_, names_of(one).size()));
    if (std::exchange(one, other) == other) return std::nullopt;
    return names_of(one)[static_cast<size_t>(one)];
  }
  template <class T>
  requires std::is_integral_v<T> Said operator()(T& one) {
    const T before = one;
    constexpr int kSteps[] = {1, 1, -1, -1, 2, 256, -256};
    one = static_cast<T>(one + kSteps[below(random_, std::size(kSteps))]);
    return fmt::format("{} instead of {}", int64_t{one}, int64_t{before});
  }

 private:
  Random& random_;
};

}  // namespace

Fields fields_of(const RoleProgram& role) {
  Fields fields;
  const auto at = [&](size_t place, const std::string& name, const auto&) {
    fields[name].push_back(place);
  };
  Walk(at).message(role, "role");
  return fields;
}

std::optional<std::string> change_field(RoleProgram& role, size_t place, Random& random) {
  Said said;
  const auto at = [&](size_t here, const std::string& name, auto& value) {
    if (here != place) return;
    said = Change(random)(value);
    if (said) said = name + ": " + *said;
  };
  Walk(at).message(role, "role");
  return said;
}

}  // namespace piper::mutation
