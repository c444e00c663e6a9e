#pragma once
// The log of a node: a line for each happening (runtime/insight/snapshot.hpp) and each note of the
// node, on stderr, in a file, or in the journal of systemd.
//
//   text  2026-11-28T21:05:07.250123Z  warning  n2  member lost         -  n3 is dead: ...
//   json  {"time":"2026-11-28T21:05:07.250123Z","level":"warning","node":"n2",
//          "kind":"member lost","job":"","job_id":"","text":"n3 is dead: ..."}
//
// Times are RFC 3339, UTC, in microseconds. Control characters become '?' in text and are escaped
// in JSON: a line is one line. In the journal the fields are TROUPE_NODE, TROUPE_KIND, TROUPE_JOB,
// TROUPE_JOB_ID and TROUPE_TIME beside MESSAGE, PRIORITY and SYSLOG_IDENTIFIER, sent as systemd's
// "Native Journal Protocol" has it (https://systemd.io/JOURNAL_NATIVE_PROTOCOL).
//
// NL-1  Who notes a line never waits for a disk, pipe or terminal: lines wait in a queue of
//       lines_max, and the oldest make room. How many were dropped so is a line of its own.
// NL-2  What cannot be written (a full disk, a journal that is away) ends nothing: it is dropped,
//       and how much was dropped, and why, is a line of its own once lines can be written again.
// NL-3  The end waits a second at most for whoever takes the lines, and reopen() not at all. A pipe
//       that has a name is no file to write to while nobody reads it.
// NL-4  A line is whole: where a part of one could be written, the next one begins on a line of its
//       own.
//
// Threading: write() from any thread; reopen() and the end from whoever owns it. Ownership: one
// thread of its own, and what it has opened. Errors: those of open(), on one line.

#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

enum class log_format : std::uint8_t { text, json };

struct log_options {
  std::optional<event_level> level = event_level::info;  // the least; none: off
  log_format format = log_format::text;
  std::string to = "stderr";  // or "file:PATH", "journal"
  // Of tests.
  std::string journal_socket = "/run/systemd/journal/socket";
  std::size_t lines_max = 8192;
};

// "info", or "off". usage: another word.
result<std::optional<event_level>> parse_log_level(std::string_view text);

class node_log {
 public:
  // usage: `to` is none of them, or the file cannot be written; not_found: no folder for it, or no
  // journal.
  static result<std::unique_ptr<node_log>> open(const log_options& options);
  ~node_log();  // writes what waits: NL-3
  node_log(const node_log&) = delete;
  node_log& operator=(const node_log&) = delete;

  void write(const event& line, std::uint64_t unix_ns);
  // A line that no node notes, with the time of now.
  void write(event_level level, std::string_view node, std::string text);
  // The file anew, by its name, which logrotate has given to another one, for the next line; else
  // nothing. An error names the file: lines go where they went before.
  result<void> reopen();
  // Waits until what was written so far is where it belongs, or was dropped. Tests.
  void flush();

 private:
  struct parts;
  explicit node_log(std::unique_ptr<parts> p);
  std::unique_ptr<parts> parts_;
};

// A line as it is written, without its end.
std::string log_line(const event& line, std::uint64_t unix_ns, log_format format);

}  // namespace troupe
