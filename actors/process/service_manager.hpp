#pragma once
// Telling the service manager that started this process how it goes: systemd's sd_notify(3)
// protocol, a datagram to the socket that $NOTIFY_SOCKET names.
//
// Threading: any thread.

#include <string_view>

namespace troupe {

// Lines such as "READY=1", "STOPPING=1", "STATUS=..". False: nobody has asked for it, or it did not
// arrive, which is no reason to end: the manager has its own time limits.
bool tell_service_manager(std::string_view lines);

}  // namespace troupe
