#pragma once
// The process of a session, for what runs beside its jobs in it. Used in actors/ only.

#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/session.hpp"

namespace troupe {

process& process_of(session& s);

}  // namespace troupe
