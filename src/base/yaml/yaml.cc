// Builds a tree with places from yaml-cpp's events, and refuses what the language leaves out.
#include "piper/base/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <map>
#include <sstream>

#include "text_checks.h"

namespace piper::yaml {
namespace {

// Leaves the reader from inside its events; never leaves parse_yaml.
struct Refused {
  Error error;
};

// Turns the reader's events into nodes. Refuses what the language leaves out at the first event
// that shows it.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, const Places& places) : text_(text), places_(places) {}
  Node take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) {
      const bool marked = text_.substr(offset(mark)).starts_with("---");
      throw Refused{
          marked ? fail(span(mark, 3), "a file holds one document; this starts a second")
                 : fail(span(mark), "the document ended before this; check the indentation")};
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check_properties(mark, anchor, "");
    for (const char* word : {"~", "null", "Null", "NULL"}) {
      if (text_.substr(offset(mark)).starts_with(word)) refuse_surprise(mark, word);
    }
    Node node;
    node.at = span(mark);
    add(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused{alias_error(mark)};
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_properties(mark, anchor, tag);
    add(scalar(mark, value));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check_properties(mark, anchor, tag);
    open(mark, Node::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check_properties(mark, anchor, tag);
    open(mark, Node::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

  Error alias_error(const YAML::Mark& mark) const {
    return fail(span(mark), "YAML aliases ('*name') are not supported")
        .with_note("help: quote a text that starts with '*': \"**/bias\"");
  }

 private:
  struct Frame {
    Node node;
    std::optional<Node> key;  // a map between a key and its value
    std::map<std::string, SourceSpan> seen;
  };

  size_t offset(const YAML::Mark& mark) const {
    return std::min(text_.size(), static_cast<size_t>(std::max(mark.pos, 0)));
  }
  SourceSpan span(const YAML::Mark& mark, int length = 1) const {
    return places_.span(offset(mark), length);
  }

  // The events do not say that an empty anchor or tag was written; the text does.
  void check_properties(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag) {
    const char c = offset(mark) < text_.size() ? text_[offset(mark)] : '\0';
    if (anchor != 0 || c == '&')
      throw Refused{fail(span(mark), "YAML anchors ('&name') are not supported")};
    if (c == '!' || (tag.size() > 1 && tag != "?")) {
      throw Refused{fail(span(mark), "YAML tags ('!name') are not supported")
                        .with_note("help: quote a text that starts with '!': \"!=3\"")};
    }
  }

  void refuse_surprise(const YAML::Mark& mark, std::string_view plain) {
    if (auto why = yaml_surprise(plain)) {
      throw Refused{fail(span(mark, count_columns(plain)), "{}: {}", shown(plain), *why)};
    }
  }

  bool is_key() const {
    return !stack_.empty() && stack_.back().node.is(Node::Kind::kMap) && !stack_.back().key;
  }

  Node scalar(const YAML::Mark& mark, const std::string& value) {
    Node node;
    node.kind = Node::Kind::kScalar;
    node.text = value;
    const size_t begin = offset(mark);
    const char first = begin < text_.size() ? text_[begin] : '\0';
    if (first == '|' || first == '>') {
      read_block(node, mark);
    } else if (first == '"' || first == '\'') {
      read_quoted(node, mark);
    } else {
      if (text_.compare(begin, value.size(), value) != 0) {
        throw Refused{
            fail(span(mark), "a plain value must be on one line")
                .with_note(
                    "help: use a block text ('|'), or check the indentation of the next line")};
      }
      if (const size_t at = other_space(value); at != std::string::npos)
        throw Refused{
            fail(places_.span(begin + at), "the file has a space that is not ASCII's here")
                .with_note("help: separate with spaces, or quote a text that has it")};
      if (!is_key()) refuse_surprise(mark, value);
      node.at = node.inside = span(mark, count_columns(value));
    }
    return node;
  }

  void read_quoted(Node& node, const YAML::Mark& mark) {
    const size_t begin = offset(mark);
    const char quote = text_[begin];
    size_t end = begin + 1;
    for (; end < text_.size() && text_[end] != '\n'; ++end) {
      if (quote == '"' && text_[end] == '\\') {
        ++end;
      } else if (text_[end] == quote) {
        if (quote == '"' || end + 1 >= text_.size() || text_[end + 1] != '\'') break;
        ++end;
      }
    }
    if (end >= text_.size() || text_[end] != quote) {
      throw Refused{fail(span(mark), "a quoted text must end on the line where it starts")};
    }
    const std::string_view raw = text_.substr(begin + 1, end - begin - 1);
    node.style = Node::Style::kQuoted;
    node.at = span(mark, count_columns(raw) + 2);
    node.inside = raw == node.text ? places_.span(begin + 1, count_columns(raw)) : node.at;
    if (raw.empty()) node.inside.length = 0;
    for (char c : node.text) {
      if (static_cast<unsigned char>(c) < ' ') {
        throw Refused{fail(node.at, "a quoted text must not hold control characters")
                          .with_note("help: text of several lines is a block: KEY: |, with its "
                                     "lines below")};
      }
    }
  }

  // Finds where the first line of the content is: below the header, after the common
  // indentation.
  void read_block(Node& node, const YAML::Mark& mark) {
    const size_t header = places_.line_of(offset(mark));
    std::string_view rest = text_.substr(offset(mark));
    rest = rest.substr(0, rest.find_first_of("\r\n #"));
    if (rest[0] == '>') {
      throw Refused{fail(span(mark), "folded texts ('>') are not supported; use '|'")
                        .with_note("help: quote a text that starts with '>': \">3\"")};
    }
    if (rest.find_first_of("0123456789") != std::string_view::npos) {
      throw Refused{fail(span(mark, static_cast<int>(rest.size())),
                         "block texts with an indentation number are not supported; use '|'")};
    }
    node.style = Node::Style::kBlock;
    node.at = span(mark, static_cast<int>(rest.size()));
    node.inside = node.at;
    if (node.text.find_first_not_of('\n') == std::string::npos) return;
    size_t line = header + 1;
    while (places_.line(line).find_first_not_of(' ') == std::string_view::npos) ++line;
    const size_t indent = places_.line(line).find_first_not_of(' ');
    node.inside.line = static_cast<int>(header) + 2;
    node.inside.column = static_cast<int>(indent) + 1;
    node.inside.length = static_cast<int>(node.text.find('\n'));
  }

  void open(const YAML::Mark& mark, Node::Kind kind) {
    if (is_key())
      throw Refused{fail(span(mark), "a key must be a text, not {}",
                         kind == Node::Kind::kMap ? "a map" : "a list")
                        .with_note("help: check that every bracket is closed")};
    if (stack_.size() >= kMaxDepth) {
      throw Refused{fail(span(mark), "lists and maps are nested more than {} deep", kMaxDepth)};
    }
    Frame frame;
    frame.node.kind = kind;
    frame.node.at = span(mark);
    stack_.push_back(std::move(frame));
  }

  void close() {
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(node));
  }

  void add(Node node) {
    if (++nodes_ > kMaxNodes)
      throw Refused{fail(node.at, "the file has more than {} values", kMaxNodes)};
    if (stack_.empty()) {
      root_ = std::move(node);
    } else if (stack_.back().node.is(Node::Kind::kList)) {
      stack_.back().node.items.push_back(std::move(node));
    } else if (!stack_.back().key) {
      check_key(node);
      stack_.back().key = std::move(node);
    } else {
      Frame& frame = stack_.back();
      if (node.is(Node::Kind::kNull)) node.at = frame.key->at;
      frame.node.entries.push_back({std::move(*frame.key), std::move(node)});
      frame.key.reset();
    }
  }

  void check_key(const Node& key) {
    if (!key.is(Node::Kind::kScalar)) throw Refused{fail(key.at, "a key is missing here")};
    if (key.text == "<<" && key.style == Node::Style::kPlain) {
      throw Refused{fail(key.at, "YAML merge keys ('<<') are not supported")};
    }
    auto [first, fresh] = stack_.back().seen.emplace(key.text, key.at);
    if (!fresh) {
      throw Refused{fail(key.at, "the key {} is given twice in one map", shown(key.text))
                        .with_note(fmt::format("first at {}", place(first->second)))};
    }
  }

  std::string_view text_;
  const Places& places_;
  std::vector<Frame> stack_;
  Node root_;
  int nodes_ = 0, documents_ = 0;
};

// Returns the reader's own complaints, with their usual causes.
Error explain(const YAML::Exception& e, const TreeBuilder& builder, std::string_view text,
              const Places& places) {
  const size_t at = std::min(text.size(), static_cast<size_t>(std::max(e.mark.pos, 0)));
  const char here = at < text.size() ? text[at] : '\0';
  if (here == '*' || (at > 0 && text[at - 1] == '*')) {
    YAML::Mark mark = e.mark;
    if (here != '*') --mark.pos;
    return builder.alias_error(mark);
  }
  Error error = fail(places.span(at), "not well-formed YAML: {}", e.msg);
  if (here == '@' || here == '`' || here == '%' || here == '>') {
    return std::move(error).with_note(
        fmt::format("help: quote a text that starts with '{}'", here));
  }
  if (here == ':' || here == '?') {
    return std::move(error).with_note(
        fmt::format("help: quote a text or an expression that contains '{} '", here));
  }
  if (e.msg.starts_with("end of map") || e.msg.starts_with("end of sequence")) {
    return std::move(error).with_note("help: check the indentation, and the brackets above");
  }
  return error;
}

}  // namespace

const Entry* Node::find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key.text == key) return &entry;
  }
  return nullptr;
}

Result<Node> parse_yaml(const std::string& path, const std::string& text) {
  const Places places(path, text);
  if (static_cast<int64_t>(text.size()) > kMaxBytes) {
    return fail(SourceSpan{path}, "the file is larger than 8 MiB");
  }
  PIPER_TRY(check_text(text, places));
  TreeBuilder builder(text, places);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    // The second call finds a second document, or text that the reader left over.
    if (parser.HandleNextDocument(builder)) parser.HandleNextDocument(builder);
  } catch (const Refused& refused) {
    return refused.error;
  } catch (const YAML::Exception& e) {
    return explain(e, builder, text, places);
  } catch (const std::exception& e) {
    return fail(SourceSpan{path}, "the YAML reader failed: {}", e.what());
  }
  return builder.take_root();
}

std::string place(const SourceSpan& at) {
  return at.line > 0 ? fmt::format("{}:{}:{}", at.file, at.line, at.column) : at.file;
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::string cut(text.substr(0, kLongest));
  // The cut is not in the middle of a character.
  while (text.size() > kLongest && !cut.empty() && (text[cut.size()] & 0xC0) == 0x80)
    cut.pop_back();
  return fmt::format("'{}{}'", quote_control(cut), text.size() > kLongest ? "…" : "");
}

std::string found(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kList:
      return node.items.empty() ? "an empty list" : "a list";
    case Node::Kind::kMap:
      return "a map";
    case Node::Kind::kScalar:
      break;
  }
  return node.style == Node::Style::kBlock ? "a block of text" : shown(node.text);
}

}  // namespace piper::yaml
