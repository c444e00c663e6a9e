#pragma once
// troupe serve: a page, JSON and metrics of a running cluster over HTTP, from a process that joins
// nothing. serve_answer.hpp says what is answered, web_server.hpp how.

#include "tools/troupe-tool/command.hpp"

namespace troupe {

// Serves until SIGINT or SIGTERM; returns the exit code. The URL is the first line of stdout.
int serve(const command& c);

}  // namespace troupe
