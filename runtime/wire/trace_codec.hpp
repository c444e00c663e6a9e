#pragma once
// Queries and pages of timelines in Cap'n Proto (schema/wire.capnp): part of the codec of control
// messages, which runs these within its limits of a message and turns kj::Exception into errors.

#include "schema/wire.capnp.h"
#include "troupe/runtime/trace/trace.hpp"
#include "troupe/schema/error.hpp"

namespace troupe {

void write_trace(wire::TraceQuery::Builder to, const trace_query& from);
void write_trace(wire::TracePage::Builder to, const trace_page& from);
result<trace_query> read_trace(wire::TraceQuery::Reader from);
result<trace_page> read_trace(wire::TracePage::Reader from);

}  // namespace troupe
