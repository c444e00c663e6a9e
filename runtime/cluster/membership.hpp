#pragma once
// One node's view of its cluster: who is a member, who is alive, whom to connect to, when to give
// up whom.
//
// Every member keeps such a view and exchanges it with every peer it has a link to; nobody is in
// charge of it. The owner reports what happens (a link works, a frame came, a dial failed, the time
// is ...), then carries out take_actions().
//
//   report               when                                   actions that may follow
//   add_seed(address)    --join, discovery                      connect
//   linked(peer)         a link works (again): proven, both     send_view, send_fence
//                        lanes
//   heard(peer)          any frame of the peer                  reachable
//   on_view(peer,        view_update                            connect, joined, died, left,
//   members)                                                    conflict
//   on_leave(peer)       leave                                  left, close
//   on_fenced(peer)      fenced                                 rejoin, conflict
//   link_lost(peer)      either lane's connection ended         check_process (the link redials by
//                                                               itself)
//   link_given_up(peer)  it can't go on                         connect, check_process
//   dial_failed(peer)    a connect action or the link's redial  died, unreachable
//   process_gone(peer)   answer to check_process: no such pid   died
//   set_address(address) others reach us there, it turns out    send_view
//   tick()               every options.tick_ns                  send_heartbeat, send_view,
//                                                               unreachable, died ...
//
// A cluster has the founder (oldest (start time, id)) of its living nodes. Views of two clusters
// are simply united, so simultaneous founders merge to the smaller one; but where both sides run
// jobs they stay apart and say so (conflict).
//
// A partition ends with both halves holding the other dead. Whoever hears a dead peer fences it: it
// says so, with the weight of its half (jobs, then nodes, then the founder). A node that is fenced
// by a peer that it holds alive gives way; of two that hold each other dead the lighter half does;
// if both halves run jobs none does, and they say so. Giving way is `rejoin`: end all parts of
// jobs, go on with reborn().
//
// MB-1  A state is final: dead and left never change back for a node id; a new life has a new id.
// MB-2  Uniting records is idempotent, commutative and associative. Who is unreachable or dead
//       every member judges for itself, by its own link; that a peer holds somebody dead only makes
//       it look sooner. Who has left is taken from anybody, because it said so itself.
// MB-3  Refused on the same host, another life at the address, or a process that is gone: dead at
//       once. Any other loss: unreachable, and dead when options.lease_ns, or what the member has
//       asked for (member_info::lease_ns), has passed since the last sign of life.
// MB-4  No death by lease while frames of the peer are reported; a detector that was itself not
//       scheduled (tick() came more than pause_ns after the last one) extends every lease by as
//       much.
// MB-5  joined comes once for an id, before any other event about it; died or left once, and is the
//       last.
// MB-6  After rejoin or leave() there are no further actions.
// MB-7  Tools are no members: everything about them is ignored. Clients are members and not counted
//       by nodes().
// MB-8  Memory is bounded: members_max living ones, dead_kept records of dead ones, graves_max of
//       their ids.
// MB-9  A member whose address is not known yet (it listens at a wildcard, and has met nobody) is
//       not dialled: it dials. An address at which we found ourselves is not dialled again, whoever
//       announces it.
// MB-10 A member that we only hear of is unreachable when unreached_ns have passed without a link;
//       the reason is that of the last dial.
//
// Threading: one owner. Time is passed in, monotonic, in nanoseconds; member_info has wall-clock
// start times.

#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/schema/ids.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct membership_options {
  std::int64_t tick_ns = 50'000'000;  // how often tick() is called
  std::int64_t heartbeat_ns = 100'000'000;
  std::int64_t suspect_ns = 500'000'000;  // silent for so long: unreachable
  std::int64_t lease_ns = 1'000'000'000;  // silent for so long: dead
  std::int64_t pause_ns = 200'000'000;    // MB-4
  // The lease of a member that we know by hearsay and have no link to yet.
  std::int64_t first_link_ns = 5'000'000'000;
  // And when we say that there is no link: MB-10.
  std::int64_t unreached_ns = 2'000'000'000;
  // The larger id waits so long for the smaller one to dial.
  std::int64_t dial_grace_ns = 300'000'000;
  std::int64_t redial_ns = 500'000'000;        // between two dials to the same address
  std::int64_t redial_max_ns = 4'000'000'000;  // it doubles up to this
  // One peer in turn gets our view although nothing changed.
  std::int64_t gossip_ns = 500'000'000;
  // A fenced peer's connection stays for so long, to be read.
  std::int64_t fence_linger_ns = 200'000'000;
  std::size_t members_max = 2048;
  std::size_t dead_kept = 256;
  std::size_t graves_max = 65'536;
  std::size_t seeds_max = 256;
  std::size_t own_addresses_max = 64;
};

// "n" and five letters or digits, made of the id: a name that needs no agreement, never changes,
// and is hardly ever given twice (16 nodes: 4 in a million). No letter looks like a digit.
std::string member_name(node_id id);

// Neither dead nor left.
bool is_living(const member_info& m) noexcept;

// The record of two views united: MB-2.
member_info united(const member_info& a, const member_info& b);

enum class membership_action_kind : std::uint8_t {
  // Dial `text` (HOST:PORT), expecting `node` there (0: whoever it is); then linked() or
  // dial_failed(). Comes again until then; what is being dialled already need not be dialled twice.
  connect,
  close,           // end the link to `node` for good, and whatever it keeps
  send_view,       // view() to `node`
  send_heartbeat,  // to `node`
  // `claim` to `node`, not numbered, on the connection that is there; a close follows later.
  send_fence,
  send_leave,     // `text` to `node`
  check_process,  // same host: does pid `about.pid` still exist? If not: process_gone(node)
  // We are fenced (`text` says by whom): end all parts, close all links, continue with reborn()
  rejoin,
  joined,  // events for listeners; `about` is the member, with state and reason
  unreachable,
  reachable,
  died,
  left,
  conflict,  // `text`: another cluster of this name with jobs, for people
};
std::string_view to_string(membership_action_kind k) noexcept;

struct membership_action {
  membership_action_kind kind{};
  node_id node{};
  std::string text;
  member_info about;
  fenced claim;
};

enum class dial_failure : std::uint8_t {
  refused,
  other_life,  // somebody else answered at the address
  itself,      // we did
  other,       // no route, no answer in time, broken handshake
};

class membership {
 public:
  // Alone at first, and so its own founder. `self.name` is filled in from its id if it is empty.
  membership(member_info self, const membership_options& options, std::int64_t now_ns,
             const planted_bugs* bugs = nullptr);

  // --- reports -----------------------------------------------------------------------------------
  // An address where a member may be. `id` as far as discovery knows it. `is_lasting`: keep trying
  // after a refusal (--join).
  void add_seed(std::string address, bool is_lasting, std::int64_t now_ns, node_id id = {});
  // `dialled`: the address of the connect action that led to this link, "" if the peer dialled;
  // `reached`: what that turned out to be, numeric. The peer is dialled there from then on: what it
  // announces may be reached from elsewhere alone.
  void linked(node_id peer, member_kind kind, std::int64_t now_ns, std::string_view dialled = {},
              std::string_view reached = {});
  void heard(node_id peer, std::int64_t now_ns);
  void on_view(node_id from, std::span<const member_info> members, std::int64_t now_ns);
  void on_leave(node_id from, std::string_view reason, std::int64_t now_ns);
  void on_fenced(node_id from, const fenced& claim, std::int64_t now_ns);
  void link_lost(node_id peer, std::int64_t now_ns);
  // The link is closed for good, while the peer may live: a new one is dialled from here.
  void link_given_up(node_id peer, std::int64_t now_ns);
  // `peer` is 0 where the connect action named nobody; `text`: the error, for people.
  void dial_failed(node_id peer, std::string_view address, dial_failure why, std::int64_t now_ns,
                   std::string_view text = {});
  void process_gone(node_id peer, std::int64_t now_ns);
  // How many parts of jobs run here now; goes out with the next views.
  void set_jobs(std::uint32_t jobs);
  // Where others reach us, as it has turned out; goes out with the next views.
  void set_address(std::string address, std::int64_t now_ns);
  void leave(std::string_view reason);
  void tick(std::int64_t now_ns);

  std::vector<membership_action> take_actions();

  // --- the view ----------------------------------------------------------------------------------
  const member_info& self() const noexcept { return self_; }
  // Everybody else that is or was a member, as seen from here; of the dead the last ones.
  std::vector<member_info> members() const;
  const member_info* find(node_id id) const;
  // Where `id` is dialled from here; empty: nowhere.
  std::string address_of(node_id id) const;
  // What goes to peers: with self, and without what only we think (unreachable).
  std::vector<member_info> view() const;
  // Living members of kind node, with self if it is one; unreachable ones count.
  std::size_t nodes() const;
  // The oldest living node (else member).
  const member_info& founder() const;
  bool has_ended() const noexcept { return has_ended_; }
  std::uint64_t pauses() const noexcept { return pauses_; }

  // After `rejoin`: the next life of this process, which finds the others again by the addresses
  // that are known.
  membership reborn(node_id id, std::uint64_t start_time_ns, std::int64_t now_ns) const;

 private:
  struct peer_entry {
    member_info info;
    bool is_member = false;  // false: linked, its view has not come yet
    bool is_linked = false;
    bool is_owed_view = false;
    std::int64_t heard_ns = 0;  // last sign of life
    bool was_linked = false;    // the lease counts
    bool redials = false;       // there is a link, which redials by itself
    std::int64_t dial_at_ns = 0;
    std::int64_t close_at_ns = 0;  // a fenced one's; 0: not fenced
    std::int64_t joined_ns = 0;    // when we heard of it
    std::string dial_error;        // of the last dial, as long as there was no link
    std::string reached;           // where a dial of ours has reached it
  };
  struct seed {
    std::string address;
    node_id id{};
    bool is_lasting = false;
    std::int64_t dial_at_ns = 0;
    std::int64_t wait_ns = 0;
  };

  void emit(membership_action_kind kind, node_id node, std::string text = {});
  void emit_event(membership_action_kind kind, const peer_entry& p, std::string text = {});
  bool is_final(node_id id) const;
  void take_record(member_info m, node_id from, std::int64_t now_ns);
  void add_member(member_info m, node_id from, std::int64_t now_ns);
  void doubt(peer_entry& p, std::int64_t now_ns);
  void replace_older_life(const member_info& newer, std::int64_t now_ns);
  void end_member(peer_entry& p, member_state state, std::string reason, bool may_return,
                  std::int64_t now_ns);
  void bury(node_id id);
  void owe_view_to_all(node_id except);
  bool lacks_something(std::span<const member_info> theirs) const;
  bool is_foreign(node_id from, std::span<const member_info> theirs) const;
  void fence(peer_entry& p, std::int64_t now_ns);
  fenced claim_of(std::string reason) const;
  void say_conflict(const fenced& theirs, const std::string& who);
  void give_way(std::string why);
  void check_leases(std::int64_t now_ns);
  std::int64_t lease_of(const peer_entry& p) const noexcept;
  bool is_own(std::string_view address) const;
  std::string why_unreached(const peer_entry& p) const;
  static const std::string& way_to(const peer_entry& p) {
    return p.reached.empty() ? p.info.address : p.reached;
  }
  void dial(std::int64_t now_ns);
  void dial_seeds(std::int64_t now_ns);
  void beat(std::int64_t now_ns);
  void gossip(std::int64_t now_ns);
  std::uint32_t jobs_on_our_side() const;

  member_info self_;
  membership_options options_;
  const planted_bugs* bugs_;             // tests only
  std::map<node_id, peer_entry> peers_;  // ordered: the same history gives the same actions
  std::vector<seed> seeds_;
  std::set<std::string, std::less<>> own_addresses_;  // numeric, where we found ourselves: MB-9
  std::deque<node_id> dead_order_;                    // of the kept records of dead ones
  std::set<node_id> graves_;
  std::deque<node_id> grave_order_;
  std::vector<membership_action> actions_;
  std::set<node_id> conflicts_;  // founders that were spoken of
  std::int64_t ticked_ns_ = 0;
  std::int64_t beat_ns_ = 0;
  std::int64_t gossip_ns_ = 0;
  node_id gossiped_{};
  std::uint64_t pauses_ = 0;
  bool has_ended_ = false;
};

}  // namespace troupe
