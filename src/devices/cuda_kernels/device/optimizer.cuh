// Updates of parameters, those of several in one launch. What the scalars of a step say is computed
// in f64 by one thread of a block, and rounded once to what the elements are computed in. Products
// are added with one rounding, as the kernels of the CPU do it.

struct StepScalars {
  double rate, clip;
  int64_t step;
};

// A rule's numbers are its op's attributes. In the order of the states that it reads and writes:
//   now(scalars)                     what all elements of the tensor share
//   next(now, old, gradient, state)  the element; state becomes what it is after the step
struct AdamRule {
  static constexpr int kStates = 2;
  double beta1, beta2, eps, decay, shrink_after;
  int64_t count;  // of updates before step 0
  enum Kind : int32_t { kDecoupled, kJoined, kOnnx } kind;

  template <class C>
  struct Now {
    C scale, shrink, decay, eps, beta2, after, fresh1, fresh2, step_size, root;
    bool decays, shrinks_after;
  };
  template <class C>
  DEVICE Now<C> now(const StepScalars& s) const {
    const double t = static_cast<double>(s.step + (kind == kOnnx ? count : 1));
    const double keep = kind == kDecoupled ? 1 - s.rate * decay : 1.0;
    const double rest1 = 1 - pow(beta1, t), rest2 = 1 - pow(beta2, t);
    double step_size = s.rate, root = 1;
    if (kind != kOnnx) {
      step_size = s.rate / rest1;
      root = sqrt(rest2);
    } else if (t > 0) {
      step_size *= sqrt(rest2) / rest1;
    }
    const double joined = kind == kDecoupled ? 0.0 : decay;
    return {C(s.clip),    C(1 - keep),  C(joined),    C(eps),      C(beta2),    C(shrink_after),
            C(1 - beta1), C(1 - beta2), C(step_size), C(1 / root), joined != 0, shrink_after != 0};
  }
  template <class C>
  DEVICE static C next(const Now<C>& now, C old, C gradient, C* state) {
    C g = gradient * now.scale;
    if (now.decays) g = add_product(now.decay, old, g);
    const C m = add_product(now.fresh1, g - state[0], state[0]);
    const C v = add_product(now.beta2, state[1], g * g * now.fresh2);
    state[0] = m;
    state[1] = v;
    const C below = add_product(square_root(v), now.root, now.eps);
    // p is rounded once, and no rounded factor near 1 drifts over the steps.
    const C p = old - add_product(now.step_size, m / below, now.shrink * old);
    return now.shrinks_after ? add_product(-now.after, p, p) : p;
  }
};

template <bool kBuffer>
struct SgdRule {
  static constexpr int kStates = kBuffer ? 1 : 0;
  double momentum, dampening, decay;
  int64_t count;
  bool nesterov;

  template <class C>
  struct Now {
    C rate, scale, decay, momentum, fresh;
    bool decays, nesterov, is_first;
  };
  template <class C>
  DEVICE Now<C> now(const StepScalars& s) const {
    return {C(s.rate),        C(s.clip),  C(decay), C(momentum),
            C(1 - dampening), decay != 0, nesterov, s.step + count == 0};
  }
  template <class C>
  DEVICE static C next(const Now<C>& now, C old, C gradient, C* state) {
    C step = gradient * now.scale;
    if (now.decays) step = add_product(now.decay, old, step);
    if (kBuffer) {
      const C next = now.is_first ? step : add_product(now.momentum, state[0], now.fresh * step);
      state[0] = next;
      step = now.nesterov ? add_product(now.momentum, next, step) : next;
    }
    return add_product(-now.rate, step, old);
  }
};

struct AdagradRule {
  static constexpr int kStates = 1;
  double rate_decay, eps, decay;
  int64_t count;

  template <class C>
  struct Now {
    C scale, eps, decay, step_size;
    bool decays;
  };
  template <class C>
  DEVICE Now<C> now(const StepScalars& s) const {
    const double t = static_cast<double>(s.step + count);
    return {C(s.clip), C(eps), C(decay), C(s.rate / (1 + t * rate_decay)), decay != 0};
  }
  template <class C>
  DEVICE static C next(const Now<C>& now, C old, C gradient, C* state) {
    C g = gradient * now.scale;
    if (now.decays) g = add_product(now.decay, old, g);
    state[0] = add_product(g, g, state[0]);
    return add_product(-now.step_size, g / (square_root(state[0]) + now.eps), old);
  }
};

struct LionRule {
  static constexpr int kStates = 1;
  double beta1, beta2, decay;

  template <class C>
  struct Now {
    C scale, rate, shrink, fresh1, fresh2;
  };
  template <class C>
  DEVICE Now<C> now(const StepScalars& s) const {
    return {C(s.clip), C(s.rate), C(s.rate * decay), C(1 - beta1), C(1 - beta2)};
  }
  template <class C>
  DEVICE static C next(const Now<C>& now, C old, C gradient, C* state) {
    const C ahead = gradient * now.scale - state[0];
    const C mixed = add_product(now.fresh1, ahead, state[0]);
    state[0] = add_product(now.fresh2, ahead, state[0]);
    // The sign of zero is zero; a NaN stays one.
    const C step = mixed > C(0) ? now.rate : mixed < C(0) ? -now.rate : mixed;
    return old - add_product(now.shrink, old, step);
  }
};

// Steps along a direction that is made: the gradient's place holds it, and `clip` is in it.
struct DirectedRule {
  static constexpr int kStates = 0;
  double scale, decay;
  bool has_rate;  // the direction

  template <class C>
  struct Now {
    C step, shrink;
  };
  template <class C>
  DEVICE Now<C> now(const StepScalars& s) const {
    return {C(has_rate ? 1.0 : s.rate * scale), C(s.rate * decay)};
  }
  template <class C>
  DEVICE static C next(const Now<C>& now, C old, C direction, C*) {
    return old - add_product(now.step, direction, now.shrink * old);
  }
};

// Keeps an average of the parameters, too: the last state.
template <class Rule>
struct Averaged {
  static constexpr int kStates = Rule::kStates + 1;
  Rule rule;
  double decay;

  template <class C>
  struct Now {
    typename Rule::template Now<C> rule;
    C fresh;
    bool is_first;
  };
  template <class C>
  DEVICE Now<C> now(const StepScalars& s) const {
    return {rule.template now<C>(s), C(1 - decay), s.step == 0};
  }
  template <class C>
  DEVICE static C next(const Now<C>& now, C old, C gradient, C* state) {
    const C made = Rule::template next<C>(now.rule, old, gradient, state);
    const C average = now.is_first ? old : state[Rule::kStates];
    state[Rule::kStates] = add_product(now.fresh, made - average, average);
    return made;
  }
};

// Takes the place of the copies' type where a run has no copies.
struct None {
  None() = default;
  template <class C>
  DEVICE explicit None(C) {}
};

// Updates one tensor: a parameter of P, its gradient of G, states of what P is computed in, or of
// bf16 where kHalves has their bit, and the parameter rounded to Q, if `copy` is not null.
template <class P, class G, class Q, int kStates, unsigned kHalves>
struct Updated {
  typedef computed<P> C;
  static constexpr int kSlots = kStates > 0 ? kStates : 1;
  const P* old;
  const G* gradient;
  P* made;
  Q* copy;
  const void* old_state[kSlots];
  void* made_state[kSlots];

  DEVICE static bool is_half(int s) { return (kHalves >> s & 1) != 0; }
  // Reads and writes pack i of a state.
  template <int kPack>
  DEVICE Pack<C, kPack> state(int s, int64_t i) const {
    if (!is_half(s)) return reinterpret_cast<const Pack<C, kPack>*>(old_state[s])[i];
    const Pack<bf16, kPack> narrow = reinterpret_cast<const Pack<bf16, kPack>*>(old_state[s])[i];
    Pack<C, kPack> wide;
    for (int e = 0; e < kPack; ++e) wide.x[e] = C(narrow.x[e]);
    return wide;
  }
  template <int kPack>
  DEVICE void set_state(int s, int64_t i, const Pack<C, kPack>& wide) const {
    if (!is_half(s)) {
      reinterpret_cast<Pack<C, kPack>*>(made_state[s])[i] = wide;
      return;
    }
    Pack<bf16, kPack> narrow;
    for (int e = 0; e < kPack; ++e) narrow.x[e] = bf16(wide.x[e]);
    reinterpret_cast<Pack<bf16, kPack>*>(made_state[s])[i] = narrow;
  }

  DEVICE bool can_pack() const {
    uint64_t all = reinterpret_cast<uint64_t>(old) | reinterpret_cast<uint64_t>(gradient) |
                   reinterpret_cast<uint64_t>(made) | reinterpret_cast<uint64_t>(copy);
    for (int s = 0; s < kStates; ++s)
      all |= reinterpret_cast<uint64_t>(old_state[s]) | reinterpret_cast<uint64_t>(made_state[s]);
    return all % 16 == 0;
  }
  DEVICE void keep(int64_t i) const {
    made[i] = old[i];
    if (copy) copy[i] = Q(C(old[i]));
    for (int s = 0; s < kStates; ++s) set_state<1>(s, i, state<1>(s, i));
  }
  // Pack i. Addresses are counted in packs: of elements, i * kPack, the compiler would make single
  // stores.
  template <int kPack, class Rule, class Now>
  DEVICE void update(int64_t i, const Now& now) const {
    typedef Pack<P, kPack> Elements;
    typedef Pack<C, kPack> States;
    const Elements p = reinterpret_cast<const Elements*>(old)[i];
    const Pack<G, kPack> g = reinterpret_cast<const Pack<G, kPack>*>(gradient)[i];
    Elements p_after;
    Pack<Q, kPack> q;
    States before[kSlots], after[kSlots];
    for (int s = 0; s < kStates; ++s) before[s] = state<kPack>(s, i);
    for (int e = 0; e < kPack; ++e) {
      C held[kSlots];
      for (int s = 0; s < kStates; ++s) held[s] = before[s].x[e];
      p_after.x[e] = P(Rule::template next<C>(now, C(p.x[e]), C(g.x[e]), held));
      q.x[e] = Q(C(p_after.x[e]));
      for (int s = 0; s < kStates; ++s) after[s].x[e] = held[s];
    }
    reinterpret_cast<Elements*>(made)[i] = p_after;
    if (copy) reinterpret_cast<Pack<Q, kPack>*>(copy)[i] = q;
    for (int s = 0; s < kStates; ++s) set_state<kPack>(s, i, after[s]);
  }
};

// Updates several tensors. Operands of each: p, g, kStateInputs states, rate, clip, step, skip if
// kInputs has it; p' and the states after it. Operand copies[tensor] is the copy; negative: there
// is none. A block has kElements elements.
template <class P, class G, class Q, unsigned kHalves, int kStateInputs, int kInputs,
          int64_t kElements, class Rule, int kPointers, int kTensors>
DEVICE void update(const Pointers<kPointers>& p, const Tensors<kTensors>& tensors,
                   const Rule* rules, const int* copies) {
  typedef computed<P> C;
  constexpr int kStates = Rule::kStates, kScalars = 2 + kStateInputs;
  typedef typename Rule::template Now<C> Now;
  const int tensor = tensors.of(blockIdx.x), at = tensor * (kInputs + 1 + kStates);
  SHARED(Now, shared, 1);
  if (threadIdx.x == 0) {
    const double* clip = p.template at<const double>(at + kScalars + 1);
    const StepScalars scalars{*p.template at<const double>(at + kScalars), clip ? *clip : 1.0,
                              *p.template at<const int64_t>(at + kScalars + 2)};
    shared[0] = rules[tensor].template now<C>(scalars);
  }
  __syncthreads();
  const Now now = shared[0];
  const int64_t begin = (blockIdx.x - tensors.first[tensor]) * kElements;
  const int64_t rest = tensors.count[tensor] - begin, count = rest < kElements ? rest : kElements;
  typedef Updated<P, G, Q, kStates, kHalves> All;
  All all;
  all.old = p.template at<const P>(at) + begin;
  all.gradient = p.template at<const G>(at + 1) + begin;
  all.made = p.template at<P>(at + kInputs) + begin;
  all.copy = copies[tensor] < 0 ? nullptr : p.template at<Q>(copies[tensor]) + begin;
  for (int s = 0; s < kStates; ++s) {
    const int64_t bytes = begin * (All::is_half(s) ? 2 : static_cast<int64_t>(sizeof(C)));
    all.old_state[s] = p.template at<const char>(at + kScalars - kStates + s) + bytes;
    all.made_state[s] = p.template at<char>(at + kInputs + 1 + s) + bytes;
  }
  const bool* skip =
      kInputs > kScalars + 3 ? p.template at<const bool>(at + kScalars + 3) : nullptr;
  if (skip && *skip) {
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) all.keep(i);
    return;
  }
  constexpr int kPack = 16 / sizeof(C);
  const int64_t packs = all.can_pack() ? count / kPack : 0;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x)
    all.template update<kPack, Rule>(i, now);
  for (int64_t i = packs * kPack + threadIdx.x; i < count; i += blockDim.x)
    all.template update<1, Rule>(i, now);
}
