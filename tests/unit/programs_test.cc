// Expressions and order programs.
#include <limits>

#include "golden.h"
#include "unit/strategy_texts.h"

namespace piper::programs_test {
namespace {

Result<int64_t> calculate(std::string_view text, const Variables& variables = {}) {
  const SourceSpan at{"e", 1, 1, static_cast<int>(text.size())};
  PIPER_ASSIGN(const Expr expression, Expr::parse(text, at));
  return expression.evaluate(variables);
}

// ---- Expressions --------------------------------------------------------------------------------

TEST(Expr, Calculates) {
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {"1 + 2 * 3", 7},
      {"(1 + 2) * 3", 9},
      {"10 - 4 - 3", 3},
      {"100 / 7 / 2", 7},
      {"7 / 2", 3},
      {"-7 / 2", -4},
      {"7 / -2", -4},
      {"-7 / -2", 3},
      {"7 % 3", 1},
      {"-7 % 3", 2},
      {"7 % -3", -2},
      {"-7 % -3", -1},
      {"-6 / 3", -2},
      {"-6 % 3", 0},
      {"- - 3", 3},
      {"!0 + !5", 1},
      {"1 < 2", 1},
      {"2 <= 1", 0},
      {"2 > 1", 1},
      {"1 >= 2", 0},
      {"1 == 1", 1},
      {"1 != 1", 0},
      {"1 && 2", 1},
      {"0 || 0", 0},
      {"0 && 1 / 0", 0},
      {"1 || 1 / 0", 1},
      {"1 ? 2 : 1 / 0", 2},
      {"0 ? 1 / 0 : 3", 3},
      {"0 ? 1 : 0 ? 2 : 3", 3},
      {"min(3, 1, 2)", 1},
      {"max(3, 1 + 4, 2)", 5},
      {"min(4)", 4},
      {"1 + 2 < 4 && 3 == 3 || 0", 1},
      {"  2  ", 2},
      {"-9223372036854775807 - 1", std::numeric_limits<int64_t>::min()},
  };
  for (const auto& [text, value] : cases) {
    const Result<int64_t> result = calculate(text);
    ASSERT_TRUE(result.ok()) << text << ": " << result.error().message;
    EXPECT_EQ(*result, value) << text;
  }
}

// The remainder belongs to floor division for all small numbers, and against __int128 at the edges.
TEST(Expr, DividesDownwards) {
  for (int64_t a = -20; a <= 20; ++a) {
    for (int64_t b = -6; b <= 6; ++b) {
      if (b == 0) continue;
      const Variables variables = {{"a", a}, {"b", b}};
      const int64_t quotient = *calculate("a / b", variables),
                    rest = *calculate("a % b", variables);
      EXPECT_EQ(quotient * b + rest, a);
      EXPECT_TRUE(rest == 0 || (rest < 0) == (b < 0));
      EXPECT_LT(std::abs(rest), std::abs(b));
    }
  }
}

TEST(Expr, NeverWraps) {
  const int64_t top = std::numeric_limits<int64_t>::max(),
                bottom = std::numeric_limits<int64_t>::min();
  const std::vector<int64_t> edges = {bottom, bottom + 1, -3037000500, -1, 0,
                                      1,      3037000500, top - 1,     top};
  for (const int64_t a : edges) {
    for (const int64_t b : edges) {
      const std::map<std::string, __int128> exact = {{"a + b", static_cast<__int128>(a) + b},
                                                     {"a - b", static_cast<__int128>(a) - b},
                                                     {"a * b", static_cast<__int128>(a) * b},
                                                     {"-a", -static_cast<__int128>(a)}};
      for (const auto& [text, value] : exact) {
        const Result<int64_t> result = calculate(text, {{"a", a}, {"b", b}});
        const bool fits = value >= bottom && value <= top;
        ASSERT_EQ(result.ok(), fits) << text << " " << a << " " << b;
        if (fits) {
          EXPECT_EQ(*result, static_cast<int64_t>(value));
        } else {
          EXPECT_EQ(result.error().message, "the result does not fit in 64 bits");
        }
      }
    }
  }
  EXPECT_FALSE(calculate("a / b", {{"a", bottom}, {"b", -1}}).ok());
  EXPECT_EQ(*calculate("a % b", {{"a", bottom}, {"b", -1}}), 0);
}

TEST(Expr, KnowsItsNames) {
  const auto expression = Expr::parse("a + min(b, $c) * ${a} - 2", {"e", 1, 1, 25});
  ASSERT_TRUE(expression.ok());
  EXPECT_EQ(expression->names(), (std::vector<std::string>{"a", "b", "c"}));
  const Expr bound = expression->with({{"b", 5}, {"a", 1}});
  EXPECT_EQ(bound.names(), (std::vector<std::string>{"c"}));
  EXPECT_EQ(*bound.evaluate({{"c", 3}}), 1 + 3 * 1 - 2);
  EXPECT_EQ(*bound.evaluate({{"c", 3}, {"a", 10}}), 10 + 3 * 10 - 2);
  const Result<int64_t> missing = bound.evaluate({});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().message, "unknown name 'c'");
  EXPECT_EQ(missing.error().at.column, 13);
  EXPECT_EQ(*Expr::constant(-4).evaluate({}), -4);
  const int64_t bottom = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(*Expr::constant(bottom).evaluate({}), bottom);
}

// ---- Order programs -----------------------------------------------------------------------------

// The published orders, made by counting: a forward runs while fewer than `ahead` microbatches are
// in flight.
std::string in_flight_row(int64_t M, int64_t ahead) {
  std::string out;
  for (int64_t f = 0, b = 0; b < M;) {
    const bool forward = f < M && f - b < ahead;
    out += fmt::format("{}{}{}", out.empty() ? "" : " ", forward ? "F" : "B", forward ? f : b);
    ++(forward ? f : b);
  }
  return out;
}

TEST(Library, OrdersAreThePublishedOnes) {
  const std::string gpipe = library_program("gpipe.yaml"),
                    one_f_one_b = library_program("1f1b.yaml");
  for (const int64_t P : {1, 2, 3, 4, 8}) {
    for (const int64_t M : {1, 2, 3, 4, 6, 16}) {
      for (int64_t r = 0; r < P; ++r) {
        EXPECT_EQ(expand(gpipe, r, P, M), in_flight_row(M, M)) << P << " " << M << " " << r;
        EXPECT_EQ(expand(one_f_one_b, r, P, M), in_flight_row(M, P - r))
            << P << " " << M << " " << r;
      }
    }
  }
  EXPECT_EQ(expand(one_f_one_b, 1, 4, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(expand(one_f_one_b, 3, 4, 2), "F0 B0 F1 B1");
}

TEST(Order, ExpressesZeroBubble) {
  const std::string zb_h1 =
      "repeat min(M, P-r-1): F\n"
      "for k in 0..M:\n"
      "  F? BI\n"
      "  if k >= r: BW\n"
      "repeat min(M, r): BW\n";
  EXPECT_EQ(expand(zb_h1, 2, 4, 6),
            "F0 F1 BI0 F2 BI1 F3 BI2 BW0 F4 BI3 BW1 F5 BI4 BW2 BI5 BW3 BW4 BW5");
  const std::string zb_h2 =
      "repeat min(M, 2*(P-r-1) + 1): F\n"
      "for k in 0..M:\n"
      "  BI\n"
      "  if k >= 2*r: BW\n"
      "  F?\n"
      "repeat min(M, 2*r): BW\n";
  EXPECT_EQ(expand(zb_h2, 1, 3, 6),
            "F0 F1 F2 BI0 F3 BI1 F4 BI2 BW0 F5 BI3 BW1 BI4 BW2 BI5 BW3 BW4 BW5");
}

TEST(Order, ExpressesOverlappedPairs) {
  const std::string dual_pipe_v =
      "repeat 2*(P-r-1): F[chunk=0]\n"
      "repeat r+1: F[chunk=0] F[chunk=1]\n"
      "repeat P-r-1: BI[chunk=1] BW[chunk=1] F[chunk=1]\n"
      "for i in 0..M-2*P+r+1:\n"
      "  if i == 0 && r == P-1: F[chunk=0] B[chunk=1]\n"
      "  else: F[chunk=0] & B[chunk=1]\n"
      "  F[chunk=1] & B[chunk=0]\n"
      "repeat P-r-1: B[chunk=1]; repeat 0: F\n";
  EXPECT_EQ(
      expand(dual_pipe_v, 0, 2, 5),
      "chunk0:F0 chunk0:F1 chunk0:F2 chunk1:F0 chunk1:BI0 chunk1:BW0 chunk1:F1 "
      "chunk0:F3&chunk1:B0 chunk1:F2&chunk0:B0 chunk0:F4&chunk1:B1 chunk1:F3&chunk0:B1 chunk1:B2");
  EXPECT_EQ(expand("if r:\n  F & B; F\nelse:\n  F[mb=1]? & B\n", 1, 2, 4), "F0&B0 F1");
}

TEST(Order, Composes) {
  EXPECT_EQ(expand("repeat 2: repeat 2: F\nrepeat -3: B\n", 0, 1, 4), "F0 F1 F2 F3");
  EXPECT_EQ(expand("repeat 2: F; B\n", 0, 1, 4), "F0 F1 B0");
  EXPECT_EQ(expand("if M > 2 ? 1 : 0: F\nelse: B\n", 0, 1, 4), "F0");
  EXPECT_EQ(expand("if M > 9: F\nelse: if M > 2: B\n", 0, 1, 4), "B0");
  for (const auto& [r, want] :
       {std::pair(0, "F0"), std::pair(1, "B0"), std::pair(2, "F0 F1"), std::pair(3, "U0")})
    EXPECT_EQ(expand("if r == 0: F\nelse if r == 1:\n  B\nelse if r == 2: repeat 2: F\nelse: U\n",
                     r, 4, 4),
              want);
  EXPECT_EQ(
      expand("let h = M / 2  # half\nfor i in h..M:\n\n  # each\n  F[mb=i,x=-i]\nU\n", 0, 1, 4),
      "x-2:mb2:F0 x-3:mb3:F0 U0");
  EXPECT_EQ(expand("for i in 0..2:\n  let a = i\n  repeat a:\n    F\n  B\nF\n", 0, 1, 4),
            "B0 F0 B1 F1");
  EXPECT_EQ(expand("repeat $M - ${P}: F", 0, 1, 4), "F0 F1 F2");
  const auto items = expand_order(order_of("F? & B [ mb = 1 ]", "program"), {});
  ASSERT_TRUE(items.ok());
  ASSERT_EQ(items->size(), 2u);
  EXPECT_TRUE((*items)[0].optional);
  EXPECT_TRUE((*items)[0].paired);
  EXPECT_FALSE((*items)[1].paired);
  EXPECT_EQ((*items)[1].at.column, 6);
  EXPECT_EQ((*items)[1].at.length, 12);
}

TEST(Order, KnowsParamsAndPasses) {
  const Strategy strategy = parsed(
      "piper: 1\nparams: {n: 3}\nmesh: {pp: 2}\ndirectives:\n"
      "  - order: {each: pp, program: \"repeat n + pp: F; if r: BW BI; repeat 0: U\"}\n");
  const auto items = expand_order(strategy.orders.at(0), {{"r", 0}, {"P", 2}, {"M", 4}});
  ASSERT_TRUE(items.ok()) << print_error(items.error());
  EXPECT_EQ(items->size(), 5u);
  const auto passes = passes_named(strategy.orders[0]);
  ASSERT_TRUE(passes.ok());
  EXPECT_EQ(*passes, (std::vector<std::string>{"F", "BI", "BW", "U"}));
}

TEST(Order, ExplainsWrongPrograms) {
  golden::run("strategy/program_errors.test", {"error"},
              [](const golden::Case& c) -> golden::Section {
                const Folder folder;
                const std::string program = c.text("program");
                const Order order = order_of(program, folder.write("program", program));
                const auto items = expand_order(order, {{"r", 0}, {"P", 2}, {"M", 4}});
                return {"error", items ? "none" : folder.print(items.error())};
              });
}

// Programs stand in the file at any depth and in any style; errors point into it.
TEST(Order, ErrorsPointIntoTheFile) {
  const std::string head = "piper: 1\nmesh: {pp: 2}\ndirectives:\n  - order:\n      each: pp\n";
  const auto at = [&](const std::string& program) {
    const Result<Strategy> strategy = parse(head + "      program: " + program);
    EXPECT_FALSE(strategy.ok());
    if (strategy) return std::string("none");
    const SourceSpan& span = strategy.error().at;
    return fmt::format("{}:{}+{}", span.line, span.column, span.length);
  };
  EXPECT_EQ(at("|\n        F\n        F X2\n"), "8:11+2");
  EXPECT_EQ(at("|-  # comment\n\n        # more\n        F\n          \n        repeat M+N: F\n"),
            "11:18+1");
  EXPECT_EQ(at("|\r\n        F\r\n        F X2\r\n"), "8:11+2");
  EXPECT_EQ(at("\"F; F X2\"\n"), "6:22+2");
  EXPECT_EQ(at("'F; F X2'\n"), "6:22+2");
  EXPECT_EQ(at("F; F X2\n"), "6:21+2");
  EXPECT_EQ(at("|\n"), "6:16+1");
}

}  // namespace
}  // namespace piper::programs_test
