// Explicit orders: lists, and PyTorch's pipeline files in both dialects and both kinds. The files
// in tests/data/orders hold the orders of PyTorch's own tests.
#include "folder.h"
#include "golden.h"
#include "unit/chain.h"

namespace piper {
namespace {

std::string file(const std::string& name) {
  const auto text =
      read_text_file(std::string(PIPER_SOURCE_DIR) + "/tests/data/orders/" + name, 1 << 20);
  EXPECT_TRUE(text) << name;
  return text ? *text : "";
}

OrderRows parsed(const std::string& text, CsvDialect dialect = CsvDialect::kDetect) {
  const auto read = parse_order_csv(text, "order.csv", dialect);
  if (read) return read->rows;
  ADD_FAILURE() << print_error(read.error());
  return {};
}

// Without the empty cells, which only leave room in drawings.
std::string without_gaps(std::string text) {
  for (size_t at = text.find(",,"); at != text.npos; at = text.find(",,")) text.erase(at, 1);
  for (size_t at = text.find("\n,"); at != text.npos; at = text.find("\n,")) text.erase(at + 1, 1);
  return text;
}

TEST(OrderCsv, EmptyLinesAtTheEndAreNoRanks) {
  const std::string text = file("zb1p_2rank_2stagep_compute.csv");
  EXPECT_EQ(print_order_csv(parsed(text + "\n\r\n"), CsvDialect::kNew),
            print_order_csv(parsed(text), CsvDialect::kNew));
}

TEST(OrderFiles, PrintAsTheyWereRead) {
  for (const char* name : {"dualpipev_4rank_10mb.csv", "zb1p_2rank_2stagep_compute.csv",
                           "zb1p_2rank_2stagep_comms.csv"})
    EXPECT_EQ(print_order_csv(parsed(file(name)), CsvDialect::kNew), without_gaps(file(name)));
  for (const char* name :
       {"zb1p_2rank_2stagep_compute_old.csv", "zb1p_2rank_2stagep_comms_old.csv"})
    EXPECT_EQ(print_order_csv(parsed(file(name)), CsvDialect::kOld), without_gaps(file(name)));
}

TEST(OrderFiles, MeanTheSameInBothDialects) {
  for (const std::string kind : {"compute", "comms"}) {
    const std::string name = "zb1p_2rank_2stagep_" + kind;
    EXPECT_EQ(print_order_csv(parsed(file(name + ".csv")), CsvDialect::kNew),
              print_order_csv(parsed(file(name + "_old.csv")), CsvDialect::kNew));
  }
  // Letters alone do not tell: B is the whole backward, unless a W shows that it was half of one.
  EXPECT_EQ(parsed("0F0,0B0\n")[0][1].type, "B");
  EXPECT_EQ(parsed("0F0,0B0,0W0\n")[0][1].type, "BI");
  EXPECT_EQ(parsed("0F0,0B0\n", CsvDialect::kOld)[0][1].type, "BI");
}

TEST(OrderFiles, GetTheCommunicationThatPyTorchDerives) {
  const auto comms = add_communication(parsed(file("zb1p_2rank_2stagep_compute.csv")));
  ASSERT_TRUE(comms) << print_error(comms.error());
  EXPECT_EQ(print_order_csv(*comms, CsvDialect::kNew), file("zb1p_2rank_2stagep_comms.csv"));
  EXPECT_EQ(print_order_csv(*comms, CsvDialect::kOld), file("zb1p_2rank_2stagep_comms_old.csv"));
  const auto small =
      add_communication(parsed("0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"));
  ASSERT_TRUE(small);
  EXPECT_EQ(print_order_csv(*small, CsvDialect::kNew),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1F2,1B2,1SEND_B2\n");
}

TEST(OrderFiles, AreTheLibrarysOrders) {
  const auto dual = chain::library("dualpipev", 4, 2, 10);
  ASSERT_TRUE(dual) << print_error(dual.error());
  const auto rows = order_rows(dual->dag, dual->schedule.compute);
  ASSERT_TRUE(rows);
  EXPECT_EQ(print_order_csv(*rows, CsvDialect::kNew), file("dualpipev_4rank_10mb.csv"));
  const auto zero = chain::library("zb-h1", 2, 2, 8, {{"chunks", "2"}});
  ASSERT_TRUE(zero) << print_error(zero.error());
  const auto cells = order_rows(zero->dag, zero->schedule.compute);
  ASSERT_TRUE(cells);
  EXPECT_EQ(print_order_csv(*cells, CsvDialect::kNew),
            without_gaps(file("zb1p_2rank_2stagep_compute.csv")));
}

TEST(OrderFiles, HoldNoStageOfSeveralDevices) {
  const auto both_ways = chain::library("chimera", 4, 1, 4);
  ASSERT_TRUE(both_ways) << print_error(both_ways.error());
  const auto rows = order_rows(both_ways->dag, both_ways->schedule.compute);
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().message,
            "not supported: an order file of stages that are on several devices");
  EXPECT_EQ(rows.error().notes,
            (std::vector<std::string>{"in such files a stage has one device, but stage 0 has at "
                                      "least two, by microbatch"}));
}

TEST(OrderFiles, SurviveOtherLineEndsAndQuotes) {
  const OrderRows rows = parsed("0F0, 0B0\r\n\"\"\r\n\"(1F0;1B1)OVERLAP_F_B\",,1F1\r\n");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].size(), 2u);
  EXPECT_TRUE(rows[1].empty());
  ASSERT_EQ(rows[2].size(), 3u);
  EXPECT_TRUE(rows[2][0].paired);
  EXPECT_EQ(rows[2][1].micro, 1);
}

TEST(OrderFiles, ExplainWhatIsWrong) {
  golden::run("orders/*.test", {"error"}, [](const golden::Case& c) -> golden::Section {
    const auto read = parse_order_csv(c.text("csv"), "order.csv", CsvDialect::kDetect);
    if (!read) return {"error", print_error(read.error())};
    const auto comms = add_communication(read->rows);
    return {"error", comms || read->has_communication ? "none" : print_error(comms.error())};
  });
}

// ---- In a strategy -----------------------------------------------------------------------------

Result<chain::Made> make(const Folder& folder, const std::string& order, int64_t stages,
                         const std::string& on, int64_t microbatches) {
  const std::string text = fmt::format(
      "piper: 1\nmesh: {{pp: 2}}\nannotate: [{{balance: {{tag: stage, into: {}}}}}]\ndirectives:\n"
      "  - split: {{dim: batch, into: {}}}\n  - place: {{where: {{stage: s}}, on: {{pp: {}}}}}\n"
      "  - order:\n      each: pp\n{}",
      stages, microbatches, on, order);
  PIPER_ASSIGN(const Strategy strategy, parse_strategy(folder.write("strategy.yaml", text), {}));
  return chain::schedule(strategy, stages);
}

TEST(Lists, AreOrders) {
  const Folder folder;
  const auto made = make(folder,
                         "      lists:\n"
                         "        - 0F0 3F0 0F1&3B0 3F1&0B0 3BI1 0B1 3BW1\n"
                         "        - 1F0 2F0 2B0 1F1 2F1 1B0 2B1 1B1\n",
                         4, "\"s < 2 ? s : 3 - s\"", 2);
  ASSERT_TRUE(made) << print_error(made.error());
  EXPECT_EQ(chain::row(*made, 0), "0F0 3F0 0F1&3B0 3F1&0B0 3I1 0B1 3W1");
  EXPECT_EQ(chain::row(*made, 1), "1F0 2F0 2B0 1F1 2F1 1B0 2B1 1B1");
  const auto short_form = make(folder, "      lists: [F0 F1 B0 B1, F0 B0 F1 B1]\n", 2, "s", 2);
  ASSERT_TRUE(short_form) << print_error(short_form.error());
  EXPECT_EQ(chain::row(*short_form, 1), "1F0 1B0 1F1 1B1");
}

TEST(Lists, NameStagesOfSeveralDevices) {
  const Folder folder;
  const auto made = make(folder, "      lists: [0F0 1F1 1B1 0B0, 0F1 1F0 1B0 0B1]\n", 2,
                         "\"mb < 1 ? s : 1 - s\"", 2);
  ASSERT_TRUE(made) << print_error(made.error());
  EXPECT_EQ(chain::row(*made, 0), "0F0 1F1 1B1 0B0");
  EXPECT_EQ(chain::row(*made, 1), "0F1 1F0 1B0 0B1");
}

TEST(Lists, AFileIsReadFromBesideTheStrategy) {
  const Folder folder;
  folder.write("order.csv", file("zb1p_2rank_2stagep_comms.csv"));
  const auto made = make(folder, "      csv: order.csv\n", 4, "s % 2", 8);
  ASSERT_TRUE(made) << print_error(made.error());
  const auto library = chain::library("zb-h1", 2, 2, 8, {{"chunks", "2"}});
  ASSERT_TRUE(library);
  for (const size_t r : {0, 1}) EXPECT_EQ(chain::row(*made, r), chain::row(*library, r));
}

// Stage 1 adds what needs no gradient: its adjoint is the one that it gets. A pipeline file has a B
// of it all the same, which takes nothing when it is read.
TEST(Lists, AStageWithoutABackwardHasOneInAFile) {
  const char* const kGraph =
      "graph batch=2 shards=1 tag=stage\ninput %x:f32[2,1] batch_dim=0\n"
      "state %w0:f32[1,1] = fill 1\nstate %w2:f32[1,1] = fill 1\n"
      "%h0:f32[2,1] = MatMul(%x, %w0) tags={stage=0}\n"
      "%h1:f32[2,1] = Add(%h0, %x) tags={stage=1}\n"
      "%h2:f32[2,1] = MatMul(%h1, %w2) tags={stage=2}\n"
      "%loss:f32[] = ReduceSum(%h2) {axes=[0,1], keepdims=0} tags={stage=2}\n"
      "output %loss\nloss %loss\nparam w0 %w0\nparam w2 %w2\n";
  const Folder folder;
  const auto make_with = [&](const std::string& order) -> Result<chain::Made> {
    const std::string text =
        "piper: 1\nmesh: {pp: 3}\nannotate: [{balance: {tag: stage, into: 3}}]\ndirectives:\n"
        "  - split: {dim: batch, into: 2}\n  - place: {where: {stage: s}, on: {pp: s}}\n"
        "  - order: {each: pp, " +
        order + "}\n";
    PIPER_ASSIGN(const Strategy strategy, parse_strategy(folder.write("strategy.yaml", text), {}));
    PIPER_ASSIGN(Graph graph, parse_graph(kGraph));
    return chain::schedule(strategy, std::move(graph));
  };
  const auto made = make_with("lists: [F0 F1 B0 B1, F0 F1 B0 B1, F0 B0 F1 B1]");
  ASSERT_TRUE(made) << print_error(made.error());
  EXPECT_EQ(chain::row(*made, 1), "1F0 1F1");
  const auto rows = order_rows(made->dag, made->compute);
  ASSERT_TRUE(rows) << print_error(rows.error());
  EXPECT_EQ(print_order_csv(*rows, CsvDialect::kNew),
            "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n");
  const auto comms = add_communication(*rows);
  ASSERT_TRUE(comms) << print_error(comms.error());
  for (const OrderRows& form : {*rows, *comms})
    for (const CsvDialect dialect : {CsvDialect::kOld, CsvDialect::kNew}) {
      folder.write("order.csv", print_order_csv(form, dialect));
      const auto again = make_with("csv: order.csv");
      ASSERT_TRUE(again) << print_error(again.error());
      for (size_t r = 0; r < 3; ++r) EXPECT_EQ(chain::row(*again, r), chain::row(*made, r));
    }
}

TEST(Lists, ExplainWhatIsWrong) {
  const Folder folder;
  folder.write("order.csv", "0F0,0B0\n2F0,2B0\n");
  const auto error = [&](const std::string& order) {
    const auto made = make(folder, order, 2, "s", 1);
    if (made) return std::string("none");
    const Error& e = made.error();
    return fmt::format("{}:{}:{}: {}{}", std::filesystem::path(e.at.file).filename().string(),
                       e.at.line, e.at.column, e.message,
                       e.notes.empty() ? "" : " | " + e.notes[0]);
  };
  EXPECT_EQ(error("      lists: [F0 B0]\n"),
            "strategy.yaml:9:7: 1 rows, but the axis 'pp' has 2 coordinates");
  EXPECT_EQ(error("      lists: [F0 B0 B0, F0 B0]\n").substr(0, 40),
            "strategy.yaml:9:21: 'B0' is there twice ");
  EXPECT_EQ(
      error("      lists: [F0 D0, F0 B0]\n"),
      "strategy.yaml:9:18: 'D0' is no task | help: a task is a pass and a microbatch, F0, B0, "
      "BI0, BW0 or R0, after the stage where a device has several: 2F0; & joins two that overlap: "
      "0F3&2B1");
  EXPECT_EQ(error("      csv: order.csv\n"),
            "order.csv:2:1: order: no task of this device has stage=2 | its tasks have stage 1");
  EXPECT_EQ(error("      csv: order.csv\n      dialect: odl\n"),
            "strategy.yaml:10:16: 'dialect' cannot be 'odl' (did you mean 'old'?) | the values of "
            "'dialect' are old, new");
  EXPECT_EQ(error("      csv: order.csv\n      program: F\n"),
            "strategy.yaml:9:7: 'order' has exactly one of the keys program, lists, csv, policy");
}

}  // namespace
}  // namespace piper
