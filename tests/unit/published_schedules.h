// The published schedules by their rules: what each device does in which order.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>

#include "piper/base/base.h"

namespace piper::published {

using Cells = std::vector<std::string>;

inline std::string text_of(const Cells& cells) {
  std::string text;
  for (const std::string& cell : cells) text += (text.empty() ? "" : " ") + cell;
  return text;
}
inline std::string cell(int64_t stage, const char* pass, int64_t micro) {
  return fmt::format("{}{}{}", stage, pass, micro);
}
// A full backward where its parts stand together, as PyTorch writes it for execution.
inline Cells merged(const Cells& cells) {
  Cells out;
  for (const std::string& c : cells) {
    std::string before = c;
    if (const size_t w = c.find('W'); w != std::string::npos && !out.empty()) {
      before[w] = 'I';
      if (out.back() == before) {
        out.back()[w] = 'B';
        continue;
      }
    }
    out.push_back(c);
  }
  return out;
}

// ---- The published rules -----------------------------------------------------------------------

inline Cells in_flight(int64_t r, int64_t M, int64_t ahead) {
  Cells out;
  for (int64_t f = 0, b = 0; b < M;) {
    const bool forward = f < M && f - b < ahead;
    out.push_back(forward ? cell(r, "F", f++) : cell(r, "B", b++));
  }
  return out;
}

// Rounds of nearly equal size, chunk by chunk; of P where that divides M, and PyTorch's where their
// number does.
inline int64_t rounds(int64_t P, int64_t M) { return std::max<int64_t>(1, M / P); }
inline int64_t largest_round(int64_t P, int64_t M) { return (M + rounds(P, M) - 1) / rounds(P, M); }
inline std::vector<std::pair<int64_t, int64_t>> table(int64_t P, int64_t V, int64_t M) {
  const int64_t n = rounds(P, M);
  std::vector<std::pair<int64_t, int64_t>> out;  // chunk, microbatch
  for (int64_t round = 0; round < n; ++round)
    for (int64_t v = 0; v < V; ++v)
      for (int64_t m = round * M / n; m < (round + 1) * M / n; ++m) out.emplace_back(v, m);
  return out;
}

inline Cells interleaved(int64_t P, int64_t V, int64_t M, int64_t r) {
  const auto order = table(P, V, M);
  const int64_t warm = std::min(2 * (P - 1 - r) + (V - 1) * largest_round(P, M), M * V);
  Cells out;
  for (int64_t k = 0; k < M * V + warm; ++k) {
    if (k < M * V) {
      const auto [v, m] = order[static_cast<size_t>(k)];
      out.push_back(cell(v * P + r, "F", m));
    }
    if (k >= warm) {
      const auto [v, m] = order[static_cast<size_t>(k - warm)];
      out.push_back(cell((V - 1 - v) * P + r, "B", m));
    }
  }
  return out;
}

inline Cells looped(int64_t P, int64_t V, int64_t M, int64_t r) {
  Cells out;
  for (int64_t v = 0; v < V; ++v)
    for (int64_t m = 0; m < M; ++m) out.push_back(cell(v * P + r, "F", m));
  for (int64_t v = V; v-- > 0;)
    for (int64_t m = M; m-- > 0;) out.push_back(cell(v * P + r, "B", m));
  return out;
}

inline Cells zero_bubble_1(int64_t P, int64_t V, int64_t M, int64_t r) {
  const auto order = table(P, V, M);
  const auto backward = [&](const char* pass, int64_t k) {
    const auto [v, m] = order[static_cast<size_t>(k)];
    return cell((V - 1 - v) * P + r, pass, m);
  };
  const int64_t warm = std::min((V - 1) * largest_round(P, M) + P - 1 - r, M * V);
  Cells out;
  int64_t f = 0, w = 0;
  const auto forward = [&] {
    if (f == M * V) return;
    const auto [v, m] = order[static_cast<size_t>(f++)];
    out.push_back(cell(v * P + r, "F", m));
  };
  for (int64_t k = 0; k < warm; ++k) forward();
  for (int64_t k = 0; k < M * V; ++k) {
    forward();
    out.push_back(backward("I", k));
    if (k >= r) out.push_back(backward("W", w++));
  }
  while (w < M * V) out.push_back(backward("W", w++));
  return out;
}

inline Cells zero_bubble_2(int64_t P, int64_t M, int64_t r) {
  Cells out;
  int64_t f = 0, w = 0;
  while (f < std::min(M, 2 * (P - 1 - r) + 1)) out.push_back(cell(r, "F", f++));
  for (int64_t k = 0; k < M; ++k) {
    out.push_back(cell(r, "I", k));
    if (k >= 2 * r) out.push_back(cell(r, "W", w++));
    if (f < M) out.push_back(cell(r, "F", f++));
  }
  while (w < M) out.push_back(cell(r, "W", w++));
  return out;
}

// Counts as in the rule; what lies beyond the last microbatch is dropped at the end.
inline Cells zero_bubble_v(int64_t P, int64_t M, int64_t r) {
  const int64_t n = std::max(2 * P - 1, M), s[2] = {r, 2 * P - 1 - r};
  std::map<std::pair<char, int>, int64_t> count;
  Cells out;
  const auto add = [&](char pass, int chunk) {
    const int64_t m = count[{pass, chunk}]++;
    if (m < M) out.push_back(cell(s[chunk], std::string(1, pass).c_str(), m));
  };
  for (int64_t i = 0; i < 2 * (P - r) - 1; ++i) add('F', 0);
  for (int64_t i = 0; i < r; ++i) add('F', 1), add('F', 0);
  for (int64_t i = 0; i < P - r; ++i) add('F', 1), add('I', 1), add('W', 1);
  while (count[{'F', 1}] < count[{'F', 0}] || count[{'F', 0}] < n) {
    if (count[{'F', 0}] < n) add('F', 0);
    add('I', 0), add('W', 0), add('F', 1), add('I', 1), add('W', 1);
  }
  for (int64_t i = 0; i < r; ++i) add('I', 0), add('I', 1);
  for (int64_t i = 0; i < P - r; ++i) add('I', 0), add('W', 0);
  while (count[{'W', 1}] < n) add('W', 1);
  while (count[{'W', 0}] < n) add('W', 0);
  return out;
}

// Two flows of M microbatches through H devices that turn or meet at the last: the one that enters
// here and the other. A flow's stage on this device, and its first microbatch.
struct Flow {
  int64_t stage, first;
};
// Weight gradients wait in a queue.
inline Cells dual_pipe(int64_t H, int64_t M, int64_t r, const Flow (&flows)[2]) {
  int64_t f[2] = {}, b[2] = {};
  std::deque<std::string> queue;
  Cells out;
  const auto name = [&](int c, const char* pass, int64_t m) {
    return cell(flows[c].stage, pass, flows[c].first + m);
  };
  const auto forward = [&](int c) { return name(c, "F", f[c]++); };
  const auto backward = [&](int c) { return name(c, "B", b[c]++); };
  const auto input = [&](int c) {
    queue.push_back(name(c, "W", b[c]));
    out.push_back(name(c, "I", b[c]++));
  };
  const auto weight = [&] {
    out.push_back(queue.front());
    queue.pop_front();
  };
  for (int64_t i = 0; i < 2 * (H - r - 1); ++i) out.push_back(forward(0));
  for (int64_t i = 0; i < r + 1; ++i) out.push_back(forward(0)), out.push_back(forward(1));
  for (int64_t i = 0; i < H - r - 1; ++i) input(1), weight(), out.push_back(forward(1));
  for (int64_t i = 0; i < M - 2 * H + r + 1; ++i) {
    if (i == 0 && r == H - 1)
      out.push_back(forward(0)), out.push_back(backward(1));
    else
      out.push_back(forward(0) + "&" + backward(1));
    out.push_back(forward(1) + "&" + backward(0));
  }
  for (int64_t i = 0; i < H - r - 1; ++i)
    out.push_back(backward(1)), out.push_back(forward(1) + "&" + backward(0));
  bool split = false;
  for (int64_t i = 0; i < r + 1; ++i)
    for (const int c : {1, 0}) {
      if (i == (r + 1) / 2 && c == (r % 2 == 1 ? 1 : 0)) split = true;
      if (split)
        input(c);
      else
        out.push_back(backward(c));
    }
  for (int64_t i = 0; i < H - r - 1; ++i) weight(), input(0);
  while (!queue.empty()) weight();
  return out;
}
inline Cells dual_pipe_v(int64_t P, int64_t M, int64_t r) {
  return dual_pipe(P, M, r, {{r, 0}, {2 * P - 1 - r, 0}});
}
// Half of the microbatches run down the devices, the others up.
inline Cells dual_pipe_both_ways(int64_t P, int64_t M, int64_t r) {
  const Flow down{r, 0}, up{P - 1 - r, M / 2};
  if (r < P / 2) return dual_pipe(P / 2, M / 2, r, {down, up});
  return dual_pipe(P / 2, M / 2, P - 1 - r, {up, down});
}

// By slots of time, units of P microbatches one after another.
inline Cells chimera(int64_t P, int64_t M, int64_t r) {
  std::map<int64_t, std::string> slots;
  const auto put = [&](int64_t slot, std::string text) {
    EXPECT_TRUE(slots.emplace(slot, std::move(text)).second) << slot;
  };
  for (int64_t unit = 0; unit < M / P; ++unit)
    for (int64_t j = 0; j < P / 2; ++j) {
      const int64_t at = 2 * P * unit + 2 * j, down = P * unit + j, up = down + P / 2;
      const int64_t s = P - 1 - r;  // the stage that the other direction has here
      put(at + r, cell(r, "F", down));
      put(at + P + (P - 1 - r), cell(r, "B", down));
      put(at + s, cell(s, "F", up));
      put(at + P + (P - 1 - s), cell(s, "B", up));
    }
  Cells out;
  for (const auto& [slot, text] : slots) out.push_back(text);
  return out;
}

// Sizes by name, with the rule that makes a device's order.
struct Rule {
  const char* name;
  std::function<bool(int64_t P, int64_t M)> fits;
  std::function<int64_t(int64_t)> chunks;
  std::function<Cells(int64_t P, int64_t V, int64_t M, int64_t r)> order;
};
inline const std::vector<Rule>& rules() {
  static const auto always = [](int64_t, int64_t) { return true; };
  static const auto twice = [](int64_t P, int64_t M) { return M >= 2 * P; };
  static const auto full = [](int64_t P, int64_t M) { return M >= P; };
  static const auto both_ways = [](int64_t P, int64_t M) {
    return P % 2 == 0 && M % 2 == 0 && M >= 2 * P;
  };
  static const auto units = [](int64_t P, int64_t M) { return P % 2 == 0 && M % P == 0; };
  static const auto any = [](int64_t v) { return v; };
  static const auto one = [](int64_t) { return int64_t{1}; };
  static const auto two = [](int64_t) { return int64_t{2}; };
  static const std::vector<Rule> kRules = {
      {"gpipe", always, one, [](auto, auto, auto M, auto r) { return in_flight(r, M, M); }},
      {"1f1b", always, one, [](auto P, auto, auto M, auto r) { return in_flight(r, M, P - r); }},
      // Of one step; how two of them overlap is tested with the delayed rules.
      {"pipedream", [](int64_t P, int64_t M) { return M >= P - 1; }, one,
       [](auto P, auto, auto M, auto r) { return in_flight(r, M, P - r); }},
      {"pipedream-2bw", full, one,
       [](auto P, auto, auto M, auto r) { return in_flight(r, M, P - r); }},
      {"interleaved-1f1b", always, any, interleaved},
      {"looped-bfs", always, any, looped},
      {"zb-h1", always, any, zero_bubble_1},
      {"zb-h2", always, one, [](auto P, auto, auto M, auto r) { return zero_bubble_2(P, M, r); }},
      {"zbv", always, two, [](auto P, auto, auto M, auto r) { return zero_bubble_v(P, M, r); }},
      {"dualpipev", twice, two, [](auto P, auto, auto M, auto r) { return dual_pipe_v(P, M, r); }},
      {"dualpipe", both_ways, one,
       [](auto P, auto, auto M, auto r) { return dual_pipe_both_ways(P, M, r); }},
      {"chimera", units, one, [](auto P, auto, auto M, auto r) { return chimera(P, M, r); }},
  };
  return kRules;
}

}  // namespace piper::published
