// Parses order programs: loops, conditions and items.
#include "program.h"

#include <algorithm>
#include <array>

#include "foreign_words.h"
#include "piper/base/yaml.h"

namespace piper::program {
namespace {

constexpr int kMaxNesting = 64;
constexpr std::array<std::string_view, 7> kPasses = {"F", "R", "B", "BI", "BW", "S", "U"};
constexpr std::array<std::string_view, 5> kKeywords = {"repeat", "for", "if", "else", "let"};

// What other languages write, and what is written here instead.
constexpr std::pair<std::string_view, std::string_view> kHabits[] = {
    {"(", "tags are in brackets, F[chunk=0]; a loop is 'for i in 0..M: …'"},
    {",", "items follow each other without commas"},
    {"{", "what a ':' governs comes after it, or indented below"},
    {"*", "'repeat M: F' takes M of them"},
    {"=", "'==' compares, 'let x = …' gives a name"},
    {"and", "write '&&'"},
    {"or", "write '||'"},
    {"while", "'repeat M: F B' and 'for i in 0..M: F[mb=i]' are the loops"},
    {"forward", "write 'F'"},
    {"backward", "write 'B'"},
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Holds what is between two ';' or line ends. Text before `begin` is other pieces and indentation.
struct Piece {
  std::string text;  // of the line, up to the piece's end
  SourceSpan at;     // of the line; its length is text.size() where columns are exact
  size_t begin = 0;
  size_t indent = 0;  // of the line
  bool starts_line = false;
};

// Cuts a line at each ";".
void cut_line(const std::string& line, const SourceSpan& place, bool exact,
              std::vector<Piece>& pieces) {
  const size_t indent = line.find_first_not_of(' ');
  bool starts_line = true;
  for (size_t begin = indent; begin < line.size();) {
    const size_t end = std::min(line.find(';', begin), line.size());
    const size_t first = line.find_first_not_of(' ', begin);
    if (first < end) {
      SourceSpan at = place;
      at.length = exact ? static_cast<int>(end) : -1;
      pieces.push_back({line.substr(0, end), std::move(at), first, indent, starts_line});
      starts_line = false;
    }
    begin = end + 1;
  }
}

std::vector<Piece> cut(const Order& order) {
  std::vector<Piece> pieces;
  const std::vector<std::string> lines = split_text(order.program, '\n');
  PIPER_CHECK(lines.size() == order.lines.size(), "a line of a program has no place");
  for (size_t number = 0; number < lines.size(); ++number) {
    const bool exact = order.lines[number].length == yaml::count_columns(lines[number]);
    const std::string line = lines[number].substr(0, lines[number].find('#'));
    cut_line(line, order.lines[number], exact, pieces);
  }
  return pieces;
}

class Parser {
 public:
  explicit Parser(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  Result<Program> program() {
    PIPER_ASSIGN(Program out, block(pieces_[0].indent));
    if (next_ < pieces_.size()) {
      return fail(here(pieces_[next_], pieces_[next_].begin, 1),
                  "this line is indented less than the first line of the program");
    }
    return out;
  }

 private:
  static SourceSpan here(const Piece& piece, size_t offset, size_t length) {
    SourceSpan at = piece.at;
    if (at.length != yaml::count_columns(piece.text)) {
      at.length = 1;
      return at;
    }
    at.column += static_cast<int>(offset);
    at.length = std::max(1, static_cast<int>(length));
    return at;
  }
  static size_t skip(const Piece& piece, size_t offset) {
    return std::min(piece.text.find_first_not_of(' ', offset), piece.text.size());
  }
  static std::string_view word(const Piece& piece, size_t offset) {
    size_t end = offset;
    while (end < piece.text.size() && is_word(piece.text[end])) ++end;
    return std::string_view(piece.text).substr(offset, end - offset);
  }
  static Error expected(const Piece& piece, size_t offset, std::string_view wanted) {
    offset = skip(piece, offset);
    if (offset >= piece.text.size()) {
      return fail(here(piece, offset, 1), "expected {}, found the end of the line", wanted);
    }
    const size_t length = std::max<size_t>(1, word(piece, offset).size());
    const std::string_view found = std::string_view(piece.text).substr(offset, length);
    Error error =
        fail(here(piece, offset, length), "expected {}, found {}", wanted, yaml::shown(found));
    for (const auto& [habit, help] : kHabits)
      if (habit == found) return std::move(error).with_note(fmt::format("help: {}", help));
    return error;
  }

  Result<Program> block(size_t indent) {
    Program out;
    while (next_ < pieces_.size() && pieces_[next_].indent >= indent) {
      const Piece& piece = pieces_[next_];
      if (piece.indent > indent) {
        return fail(here(piece, piece.begin, 1), "the indentation of this line fits no open block");
      }
      ++next_;
      if (word(piece, piece.begin) == "else") {
        PIPER_TRY(otherwise(piece, out));
        continue;
      }
      PIPER_ASSIGN(Statement statement, read(piece, piece.begin));
      out.push_back(std::move(statement));
    }
    return out;
  }

  static bool is_if(const Statement& one) { return one.kind == Statement::Kind::kIf; }

  Status otherwise(const Piece& piece, Program& before) {
    // The last of a chain of 'else if'.
    Statement* last = before.empty() ? nullptr : &before.back();
    while (last && last->chains) last = &last->otherwise.back();
    if (!last || !is_if(*last) || !last->otherwise.empty()) {
      Error error = fail(here(piece, piece.begin, 4), "this 'else' has no 'if' before it");
      if (last && !is_if(*last) && std::any_of(before.begin(), before.end(), is_if))
        error.notes.push_back(
            "help: a ';' ends an 'if'; items of one branch stand side by side: 'if c: F F'");
      return error;
    }
    const size_t next = skip(piece, piece.begin + 4);
    if (word(piece, next) != "if") {
      PIPER_ASSIGN(last->otherwise, body(piece, piece.begin + 4));
      return ok_status();
    }
    PIPER_ASSIGN(Statement chained, read(piece, next));
    last->otherwise.push_back(std::move(chained));
    last->chains = true;
    return ok_status();
  }

  // Parses what the colon governs.
  Result<Program> governed(const Piece& piece, size_t offset) {
    const size_t rest = skip(piece, offset + 1);
    Program out;
    if (rest < piece.text.size()) {
      PIPER_ASSIGN(Statement statement, read(piece, rest));
      out.push_back(std::move(statement));
    } else {
      const bool deeper = next_ < pieces_.size() && pieces_[next_].starts_line &&
                          pieces_[next_].indent > piece.indent;
      if (!deeper)
        return fail(here(piece, offset, 1), "nothing follows this ':'")
            .with_note("help: write items on the same line, or an indented block below");
      PIPER_ASSIGN(out, block(pieces_[next_].indent));
    }
    return out;
  }

  // Parses ':' and what it governs: the rest of the piece, or a deeper block.
  Result<Program> body(const Piece& piece, size_t offset) {
    offset = skip(piece, offset);
    if (offset >= piece.text.size() || piece.text[offset] != ':')
      return expected(piece, offset, "':'");
    if (++nesting_ > kMaxNesting) {
      return fail(here(piece, offset, 1), "blocks are nested more than {} deep", kMaxNesting);
    }
    PIPER_ASSIGN(Program out, governed(piece, offset));
    --nesting_;
    return out;
  }

  Result<Statement> read(const Piece& piece, size_t offset) {
    Statement out;
    const std::string_view keyword = word(piece, offset);
    out.at = here(piece, offset, keyword.size());
    const size_t after = offset + keyword.size();
    if (keyword == "repeat") return repeat(piece, after, std::move(out));
    if (keyword == "if") return condition(piece, after, std::move(out));
    if (keyword == "for") return loop(piece, after, std::move(out));
    if (keyword == "let") return let(piece, after, std::move(out));
    if (keyword == "else") return fail(out.at, "this 'else' has no 'if' before it");
    PIPER_TRY(items(piece, offset, out));
    return out;
  }

  Result<Statement> repeat(const Piece& piece, size_t offset, Statement out) {
    out.kind = Statement::Kind::kRepeat;
    PIPER_ASSIGN(offset, expression(piece, offset, out.first));
    PIPER_ASSIGN(out.body, body(piece, offset));
    return out;
  }

  Result<Statement> condition(const Piece& piece, size_t offset, Statement out) {
    out.kind = Statement::Kind::kIf;
    PIPER_ASSIGN(offset, expression(piece, offset, out.first));
    PIPER_ASSIGN(out.body, body(piece, offset));
    return out;
  }

  Result<Statement> loop(const Piece& piece, size_t offset, Statement out) {
    out.kind = Statement::Kind::kFor;
    PIPER_ASSIGN(offset, new_name(piece, offset, out));
    offset = skip(piece, offset);
    if (word(piece, offset) != "in") return expected(piece, offset, "'in'");
    PIPER_ASSIGN(offset, expression(piece, offset + 2, out.first));
    if (piece.text.compare(offset, 2, "..") != 0) return expected(piece, offset, "'..'");
    PIPER_ASSIGN(offset, expression(piece, offset + 2, out.second));
    PIPER_ASSIGN(out.body, body(piece, offset));
    return out;
  }

  Result<Statement> let(const Piece& piece, size_t offset, Statement out) {
    out.kind = Statement::Kind::kLet;
    PIPER_ASSIGN(offset, new_name(piece, offset, out));
    offset = skip(piece, offset);
    if (offset >= piece.text.size() || piece.text[offset] != '=')
      return expected(piece, offset, "'='");
    PIPER_ASSIGN(offset, expression(piece, offset + 1, out.first));
    if (offset < piece.text.size())
      return expected(piece, offset, "an operator or the end of the line");
    return out;
  }

  static Result<size_t> new_name(const Piece& piece, size_t offset, Statement& out) {
    offset = skip(piece, offset);
    const std::string_view name = word(piece, offset);
    const bool reserved = name == "min" || name == "max";
    if (!expr::is_identifier(name) || reserved) return expected(piece, offset, "a new name");
    out.name = name;
    out.name_at = here(piece, offset, name.size());
    return offset + name.size();
  }

  static Result<size_t> expression(const Piece& piece, size_t offset, expr::Tree& out) {
    PIPER_ASSIGN(expr::Prefix prefix,
                 expr::parse_prefix(piece.text, skip(piece, offset), piece.at));
    out = std::move(prefix.tree);
    return prefix.end;
  }

  // Parses '&', or '&&', between the items of a pair.
  Status pair(const Piece& piece, bool after_pair, size_t& offset, Item& next) {
    if (after_pair)
      return fail(here(piece, offset, 1), "a pair has two items; this would be the third");
    next.paired = true;
    next.apart = offset + 1 < piece.text.size() && piece.text[offset + 1] == '&';
    const size_t sign = next.apart ? 2 : 1;
    next.pair_at = here(piece, offset, sign);
    offset = skip(piece, offset + sign);
    if (offset >= piece.text.size()) return expected(piece, offset, "an item after '&'");
    return ok_status();
  }

  Status items(const Piece& piece, size_t offset, Statement& out) {
    bool after_pair = false;  // the item before is the first of a pair
    while (offset < piece.text.size()) {
      Item next;
      PIPER_ASSIGN(offset, item(piece, offset, next));
      offset = skip(piece, offset);
      if (offset < piece.text.size() && piece.text[offset] == '&')
        PIPER_TRY(pair(piece, after_pair, offset, next));
      after_pair = next.paired;
      out.items.push_back(std::move(next));
    }
    return ok_status();
  }

  static Result<size_t> item(const Piece& piece, size_t offset, Item& out) {
    const std::string_view name = word(piece, offset);
    if (name.empty()) return expected(piece, offset, "an item such as F or B");
    out.pass = name;
    out.at = here(piece, offset, name.size());
    PIPER_TRY(check_pass(name, out.at));
    size_t end = offset + name.size();
    if (skip(piece, end) < piece.text.size() && piece.text[skip(piece, end)] == '[') {
      PIPER_ASSIGN(end, tags(piece, skip(piece, end) + 1, out));
    }
    if (end < piece.text.size() && piece.text[end] == '?') {
      out.optional = true;
      ++end;
    }
    out.at = here(piece, offset, end - offset);
    return end;
  }

  static Status check_pass(std::string_view name, const SourceSpan& at) {
    if (std::find(kPasses.begin(), kPasses.end(), name) != kPasses.end()) return ok_status();
    for (const auto& [habit, help] : kHabits)
      if (habit == name)
        return fail(at, "unknown item {}", yaml::shown(name))
            .with_note(fmt::format("help: {}", help));
    if (const std::string help = foreign_word(name); !help.empty())
      return fail(at, "unknown item {}", yaml::shown(name))
          .with_note(fmt::format("help: {}", help));
    std::vector<std::string> known(kPasses.begin(), kPasses.end());
    known.insert(known.end(), kKeywords.begin(), kKeywords.end());
    const size_t digits = std::min(name.find_first_of("0123456789"), name.size());
    const std::string_view pass = name.substr(0, digits), micro = name.substr(digits);
    const bool numbered = std::find(kPasses.begin(), kPasses.end(), pass) != kPasses.end() &&
                          micro.find_first_not_of("0123456789") == std::string_view::npos;
    if (numbered)
      return fail(at, "unknown item {}", yaml::shown(name))
          .with_note(fmt::format("help: '{0}' takes the next one, '{0}[mb={1}]' that of "
                                 "microbatch {1}",
                                 pass, micro));
    return fail(at, "unknown item {}{}", yaml::shown(name), did_you_mean(name, known))
        .with_note(
            "the items are F, R, B, BI, BW, S and U; 'repeat', 'for', 'if', 'else' and 'let' "
            "begin statements");
  }

  // tag=EXPR, … ]
  static Result<size_t> tags(const Piece& piece, size_t offset, Item& out) {
    while (true) {
      offset = skip(piece, offset);
      const std::string name(word(piece, offset));
      if (!expr::is_identifier(name)) return expected(piece, offset, "a tag such as chunk=0");
      const bool twice = std::any_of(out.tags.begin(), out.tags.end(),
                                     [&](const auto& tag) { return tag.first == name; });
      if (twice) return fail(here(piece, offset, name.size()), "the tag '{}' is given twice", name);
      offset = skip(piece, offset + name.size());
      if (offset >= piece.text.size() || piece.text[offset] != '=')
        return expected(piece, offset, "'='");
      expr::Tree value;
      PIPER_ASSIGN(offset, expression(piece, offset + 1, value));
      out.tags.emplace_back(name, std::move(value));
      const char after = offset < piece.text.size() ? piece.text[offset] : '\0';
      if (after == ']') return offset + 1;
      if (after != ',') return expected(piece, offset, "',' or ']'");
      ++offset;
    }
  }

  std::vector<Piece> pieces_;
  size_t next_ = 0;
  int nesting_ = 0;
};

Status check_block(const Program& block, std::vector<std::string>& known);

Status check_statement(const Statement& statement, std::vector<std::string>& known) {
  for (const expr::Tree* tree : {&statement.first, &statement.second}) {
    PIPER_TRY(expr::check_names(*tree, known));
  }
  for (const Item& item : statement.items) {
    for (const auto& [tag, value] : item.tags) PIPER_TRY(expr::check_names(value, known));
  }
  const size_t outside = known.size();
  if (!statement.name.empty()) {
    if (std::find(known.begin(), known.end(), statement.name) != known.end()) {
      return fail(statement.name_at, "'{}' already has a meaning here; take another name",
                  statement.name);
    }
    known.push_back(statement.name);
  }
  PIPER_TRY(check_block(statement.body, known));
  PIPER_TRY(check_block(statement.otherwise, known));
  if (statement.kind != Statement::Kind::kLet) known.resize(outside);
  return ok_status();
}

// Names made in a block end with it.
Status check_block(const Program& block, std::vector<std::string>& known) {
  const size_t outside = known.size();
  for (const Statement& statement : block) PIPER_TRY(check_statement(statement, known));
  known.resize(outside);
  return ok_status();
}

}  // namespace

Result<Program> parse(const Order& order) {
  std::vector<Piece> pieces = cut(order);
  if (pieces.empty()) {
    SourceSpan at = order.lines.front();
    at.length = std::max(1, at.length);
    return fail(std::move(at), "the order program is empty");
  }
  return Parser(std::move(pieces)).program();
}

Status check_names(const Program& program, std::vector<std::string> known) {
  return check_block(program, known);
}

void collect_names(const Program& program, std::set<std::string, std::less<>>& out) {
  const auto collect = [&](const expr::Tree& tree) {
    for (const expr::Node& node : tree.nodes)
      if (node.op == expr::Op::kName) out.emplace(tree.name(node));
  };
  for (const Statement& statement : program) {
    collect(statement.first);
    collect(statement.second);
    for (const Item& item : statement.items)
      for (const auto& [tag, value] : item.tags) collect(value);
    collect_names(statement.body, out);
    collect_names(statement.otherwise, out);
  }
}

}  // namespace piper::program
