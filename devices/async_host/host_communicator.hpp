#pragma once
// Collectives of asynchronous host devices, in the place of NCCL: ranks are devices of one process
// or of several on this machine, and what is enqueued waits for the others on the thread of its
// stream, as it does on a device. It is for trying out whoever uses communicators, not for speed:
// all goes through rank 0, by sockets on loopback.
//
// HC-1  Who does not know the id is not let in; ranks that call different collectives, or with
//       other sizes or types, are told which.
// HC-2  abort() ends whatever waits, in this process at once, in the others as they notice that a
//       connection has ended: as an error of their streams.
// HC-3  Every rank gets the same bits. A sum of more than two ranks has another order than theirs,
//       as NCCL's has.
// HC-4  finish() (DC-6) has a thread of its own: once all that was enqueued has run it says goodbye
//       to rank 0, which answers all when it has heard all, and then has an end itself. Whoever
//       vanishes after its goodbye, rank 0 after its answers, is missed by nobody. Who does so
//       before is named to all that wait for the end: as a failure of their communicators, not of
//       their streams.
//
// Threading: as devices/device/device_collective.hpp says; make_id() and begin() on any thread.
// Ownership: outlives its communicators.

#include "troupe/devices/device/device_collective.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace troupe {

class host_meeting_points {
 public:
  host_meeting_points();
  ~host_meeting_points();
  result<communicator_id> make_id(const std::string& device);
  // The chip of the device has threads.
  result<std::unique_ptr<device_communicator>> begin(const communicator_id& id, int rank, int ranks,
                                                     const std::string& device,
                                                     communicator_changed changed);

 private:
  class socket;
  friend class host_gang;
  std::mutex lock_;
  std::map<std::string, std::unique_ptr<socket>> made_;  // by id: where rank 0 will listen
};

}  // namespace troupe
