#pragma once
// Pages of typical mistakes and what Troupe says of them: their code as it stands in a test, and
// the text without what differs from run to run.

#include <cctype>
#include <cstddef>
#include <regex>
#include <string>
#include <string_view>

namespace troupe::test {

// `file`: __FILE__ of the test. The line of the page instead of that of the test, which changes.
inline std::string told_on_page(std::string text, std::string_view file) {
  // With its folders, and without.
  for (const auto name : {file, file.substr(file.rfind('/') + 1)})
    for (auto at = text.find(name); at != std::string::npos; at = text.find(name)) {
      auto end = at + name.size() + 1;
      while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
      text.replace(at, end - at, "model.cpp:1");
    }
  // Nodes choose their names.
  static const std::regex node("node [a-z0-9]+ \\(pid [0-9]+\\)");
  return std::regex_replace(text, node, "node n1 (pid 4711)");
}

// A statement a line, without `return p.built();` and the `p.of()` round the last one, which hand
// the text to the page.
inline std::string shown_on_page(std::string code) {
  const auto replace_all = [&](std::string_view what, std::string_view by) {
    for (auto at = code.find(what); at != std::string::npos; at = code.find(what, at + by.size()))
      code.replace(at, what.size(), by);
  };
  replace_all(" return p.built();", "");
  for (auto at = code.find("return p.of("); at != std::string::npos;
       at = code.find("return p.of(")) {
    const auto end = code.rfind(");");
    code.replace(end, 2, ";");
    code.erase(at, std::string_view("return p.of(").size());
  }
  int depth = 0;
  for (std::size_t i = 0; i + 1 < code.size(); ++i) {
    depth += (code[i] == '(' || code[i] == '{') - (code[i] == ')' || code[i] == '}');
    if (depth == 0 && code[i] == ';' && code[i + 1] == ' ') code[i + 1] = '\n';
  }
  return code;
}

}  // namespace troupe::test
