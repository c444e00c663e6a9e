@0xd2f5a1c8b7e64031;
# What nodes say to each other, inside frames (runtime/wire/frame.hpp) of an authenticated connection.
#
# A link between two nodes has two connections. The control lane carries `Control`, the data lane carries `Chunk` headers
# with a raw payload behind them. Nothing on the control lane relies on order against the data lane; what must be
# ordered with data (the end of a stream) is data. A lost connection loses nothing: each lane numbers its
# frames, the sender keeps them until they are acknowledged, and a reconnected lane resends from there.
#
# Every message that belongs to a job carries the job's id and epoch; a receiver that knows another epoch drops it and
# counts. Node ids name one life of a process and never return, so they are the generation of sender and
# receiver as well.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::wire");

struct Member {
  id @0 :UInt64;            # new for every life
  startTimeNs @1 :UInt64;   # since the epoch of the wall clock; the smaller (start time, id) founds the cluster
  name @2 :Text;            # "n3": for people
  address @3 :Text;         # HOST:PORT that it listens on
  host @4 :Text;            # same text = same host, running the same kernel, counting processes alike
  pid @5 :UInt32;
  kind @6 :UInt8;           # 0 node, 1 client, 2 tool
  job @7 :Text;             # "worker", "ps" or ""
  streams @8 :UInt32;
  incarnation @9 :UInt32;   # how often this process has joined: 1, 2, ...
  state @10 :UInt8;         # 0 alive, 1 unreachable, 2 dead, 3 left
  reason @11 :Text;         # why dead
  jobs @12 :UInt32;         # parts of jobs that it runs now; two clusters that both have some do not merge
  revision @13 :UInt32;     # counts the member's own changes of its record: the higher one is newer
  libraries @14 :List(MemberLibrary);  # of users' ops, that it has loaded: who lacks one gets no work that needs it
  devices @15 :List(MemberDevices);    # gpu:0, gpu:1, ... in their order: who lacks one gets no work that wishes for it
  leaseNs @17 :Int64;       # how long others wait for a sign of its life, at most an hour; 0: one second
  labels @16 :List(Text);   # "rack=3", at most 32 of 64 bytes each: devices of graphs may name them
}

# Devices that follow each other and are alike.
struct MemberDevices {
  hardware @0 :Text;        # "NVIDIA H100 80GB HBM3", at most 64 bytes
  memoryBytes @1 :UInt64;   # that jobs may use on each; 0: no limit but the machine's
  count @2 :UInt32;         # at least 1; of all groups together at most 256
}

struct MemberLibrary { name @0 :Text; version @1 :Text; abi @2 :UInt64; }

struct Tag {
  step @0 :UInt64;
  run @1 :UInt32;
  microBatch @2 :UInt32;    # at most 65,535
  frame @3 :UInt32;         # in loops: the iterations of those around; the lower half
  iteration @4 :UInt32;
  mark @5 :UInt32;          # of a checkpoint's cut: the first step that is not in it; 0: none
  frameHigh @6 :UInt32;
  dead @7 :UInt16;          # not 0: a dead token (schema/ids.hpp), whose tensor is u8[0] and stands for none
}

# The last of the first frames (runtime/wire/handshake.hpp): who the peer is, and where its lane goes on.
struct Identity {
  member @0 :Member;
  lane @1 :UInt8;           # 0 control, 1 data
  received @2 :UInt64;      # every sequence up to here has arrived on this lane of the link
  expected @3 :UInt64;      # the node that the initiator means to reach; 0: whoever it is
  link @4 :UInt64;          # the link that the connection is for: a random number, chosen by the initiator that began it
  begins @5 :Bool;          # it begins with this connection
  probeAddress @6 :UInt64;  # a word in the memory of the speaker, and what it says: who can read it tells so in every frame, and is not sent
  probeValue @7 :UInt64;    # payloads that it can read where they are. 0: there is none
}

# In front of every chunk of a tensor. Chunks of one tensor arrive in order on its lane.
#
# A stream between two processes of work that is no job has that work's id, epoch 0 and edge 0; its values are u8, of one dimension and of 1 byte to
# 2 GiB, numbered from 0 in each direction. What the receiver has not bound it drops, and what follows on that stream as well.
struct Chunk {
  job @0 :UInt64;
  epoch @1 :UInt32;
  edge @2 :UInt32;
  sender @3 :UInt64;        # node ids: a message from or to an earlier life matches nobody
  receiver @4 :UInt64;
  tag @5 :Tag;
  sequence @6 :UInt64;      # of the tensor on its edge: 0, 1, ...
  dtype @7 :UInt8;
  dims @8 :List(Int64);
  totalBytes @9 :UInt64;
  offset @10 :UInt64;       # of this chunk
  part @11 :UInt32;        # between ranks of a collective: which piece of what it is (runtime/firing/collective_state.hpp)
}

struct CreditReturn { edge @0 :UInt32; count @1 :UInt32; job @2 :UInt64; epoch @3 :UInt32; }

# Counters of one actor of a job, in its last report.
struct ShardReport {
  actor @0 :UInt32;
  received @1 :List(UInt64);
  applied @2 :List(UInt64);
  dropped @3 :List(UInt64);
  duplicates @4 :List(UInt64);
}

# What a node keeps of a variable when an epoch has ended: the versions that it has, and the steps of each worker in the newest.
struct Kept { variable @0 :Text; versions @1 :List(UInt64); applied @2 :List(UInt64); }

# --- a timeline (runtime/trace/trace.hpp) ---
#
# A tool asks every node to record for a while, and fetches pages of what was recorded while it lasts. Each page says what time it is on the
# node's monotonic clock, which all other times in it are of. A node forgets a recording that nobody has asked for in 5 s.

struct TraceQuery {
  id @0 :UInt64;            # stands in the answer
  recording @1 :UInt64;     # chosen by the tool; 0: only the clock is asked for
  durationNs @2 :Int64;     # begin, if it has not begun; 0: go on
  ends @3 :Bool;            # the tool is done with it
  owner @4 :Text;           # who records, for people
}

struct TracePage {
  id @0 :UInt64;
  recording @1 :UInt64;
  error @2 :Text;           # empty: none
  nowNs @3 :Int64;
  beganNs @4 :Int64;
  endedNs @5 :Int64;        # 0: it goes on
  hasMore @6 :Bool;         # ask again at once
  isLast @7 :Bool;
  parts @8 :List(TracePart);
  actors @9 :List(TraceActor);
  lanes @10 :List(TraceLane);  # all, in one order
}

# Whom events speak of; each comes once.
struct TracePart { part @0 :UInt32; job @1 :UInt64; epoch @2 :UInt32; jobName @3 :Text; task @4 :Text; }
struct TraceActor {
  number @0 :UInt32;        # in the recording, from 1
  part @1 :UInt32;          # 0: of no plan
  kind @2 :UInt8;           # as in the plan
  name @3 :Text;
  type @4 :Text;            # of its ops
  peer @5 :UInt64;          # send and receive: the node of the other one
  inputs @6 :List(UInt32);  # edge by input port
  outputs @7 :List(UInt32); # edges of all output ports, in their order
  ports @8 :List(UInt32);   # of each of those: the output port
  kernels @9 :List(Text);   # of what runs on a device: names of its kernels, by number
}

struct TraceLane {
  name @0 :Text;            # of a thread: "cpu:0", "service"; of a stream of a device: "gpu:0/compute"
  isStream @1 :Bool;
  isAsleep @2 :Bool;        # when the recording ended
  running @3 :UInt32;       # whose kernel ran then; 0: nobody's
  lost @4 :UInt64;          # events that were written over before they were read
  events @5 :List(TraceEvent);
}
struct TraceEvent {
  beginNs @0 :Int64;
  endNs @1 :Int64;
  kind @2 :UInt8;           # runtime/trace/trace_ring.hpp
  actor @3 :UInt32;         # 0: nobody
  step @4 :UInt64;
  where @5 :UInt32;         # a port, or a kernel; 0xffffff: all. Of a replay: how many kernels
  waited @6 :UInt32;        # for what, before: state << 24 | port
  bytes @7 :UInt64;         # of a transfer or a copy
}

struct DataHash { what @0 :Text; hash @1 :UInt64; }   # of data that every node reads from its own files

struct Control {
  union {
    heartbeat @0 :UInt64;               # ticks of the sender: "my I/O thread runs"
    view @1 :List(Member);              # members that the sender knows; idempotent
    leave @2 :Text;                     # graceful: the sender ends after this, reason for people
    credits @3 :List(CreditReturn);     # batched: what consumers gave back since the last one
    place :group { job @4 :UInt64; epoch @5 :UInt32; plan @6 :Data; nodes @7 :List(UInt64);
                   checkpoints @31 :Text;      # the job's folder; empty: it writes none
                   restoreFrom @32 :Text;      # the checkpoint that shards begin with; empty: what the node keeps
                   mayMove @71 :Bool;          # another node goes on with the job when its coordinator dies
                   planLow @101 :UInt64; planHigh @102 :UInt64; planSize @103 :UInt64; }
                                        # a size: the plan is too large for a message, and that blob
                                        # take part in an epoch of a job: nodes[i] runs tasks[i] of the plan
    placed :group { job @8 :UInt64; error @9 :Text; epoch @33 :UInt32; unlinked @55 :UInt64; data @104 :List(DataHash); }
                                        # answer; an empty error: all actors of the part are there
    start @10 :UInt64;                  # job: sources may fire
    stop :group { job @11 :UInt64; reason @12 :Text; }
                                        # job: end all its actors here
    partEnded :group { job @13 :UInt64; error @14 :Text; actor @15 :Text; step @16 :UInt64; shards @17 :List(ShardReport);
                      dataMessages @30 :UInt64;     # items that its actors received
                      epoch @34 :UInt32;
                      isDerived @67 :Bool; }        # the error may follow from the end of another node, which is about to be told
                                        # a node's part is done (empty error), or failed (root cause)
    query :group { id @18 :UInt64; request @19 :Text; }
                                        # the debug tool asks: "nodes", "actors", "jobs", "events"
    answer :group { id @20 :UInt64; json @21 :Text; }
    lostPeer :group { job @22 :UInt64; node @23 :UInt64; reason @24 :Text; hasLeft @59 :Bool; }
                                        # to a job's coordinator: a participant sees a peer dead
    fenced :group { reason @25 :Text; nodes @26 :UInt32; jobs @27 :UInt32; startTimeNs @28 :UInt64; id @29 :UInt64; }
                                        # "you are dead to us, come back as another": with the living nodes, the jobs
                                        # and the founder of the sender's side, by which two halves of a cluster
                                        # agree which of them gives way (runtime/cluster/membership.hpp)
    halt :group { job @35 :UInt64; epoch @36 :UInt32; reason @37 :Text; }
                                        # the epoch does not go on: end its actors, keep the variables, say what you have
    halted :group { job @38 :UInt64; epoch @39 :UInt32; kept @40 :List(Kept); shards @41 :List(ShardReport);
                    dataMessages @42 :UInt64; }   # answer, also where no part of the job is known
    beginCut :group { job @43 :UInt64; epoch @44 :UInt32; mark @45 :UInt32; }
                                        # a checkpoint: mark what workers make next (Tag.mark)
    saved :group { job @46 :UInt64; epoch @47 :UInt32; step @48 :UInt64; error @49 :Text; workerSteps @50 :List(UInt64);
                   file @51 :Text; hash @52 :Text; bytes @53 :UInt64; variables @54 :List(Text); }
                                        # a node's part of a cut is on disk (empty error), or will not be
    begun :group { job @57 :UInt64; epoch @58 :UInt32; }
                                        # every variable of the epoch is where it belongs: copies of earlier ones may go
    leaving @56 :UInt64;                # job, to its coordinator: the sender wants to leave, its work is to go elsewhere first
    traceQuery @60 :TraceQuery;         # a tool records a timeline
    tracePage @61 :TracePage;           # answer
    cancelRun :group { job @68 :UInt64; epoch @69 :UInt32; step @70 :UInt64; }
                                        # the program has given the step up: its loops, and those of earlier ones, end
    noted :group { job @62 :UInt64; epoch @63 :UInt32; actor @64 :Text; step @65 :UInt64; text @66 :Text; }
                                        # job, to its coordinator: something that people want to know, of an actor that goes on
    keepJournal :group { job @72 :UInt64; number @73 :UInt64; recipe @74 :Data; journal @75 :Data; }
                                        # coordinator, to who would coordinate the job after it (schema/journal.capnp): how the
                                        # training is made (empty: as it said before), and how far it is
    journalKept :group { job @76 :UInt64; number @77 :UInt64; error @86 :Text; }   # answer; an error: it cannot
    giveJob :group { job @78 :UInt64; reason @79 :Text; }
                                        # coordinator, to who has its newest journal: the job is yours
    askForJob @80 :Text;                # a program, to every node: whoever coordinates the job of that name or id, give it to me
    jobRefused :group { job @81 :Text; reason @82 :Text; }        # answer, of a job that is not given away
    jobMoved :group { job @83 :UInt64; epoch @84 :UInt32; node @85 :UInt64; }
                                        # to a former coordinator: that node has the job since that epoch
    workWord :group { job @87 :UInt64; bytes @88 :Data; }
                                        # of work that is no job, to who takes part in it there: what they say to each other, at most 15 MiB
    wantBlob :group { job @89 :UInt64; low @90 :UInt64; high @91 :UInt64; size @92 :UInt64; offset @93 :UInt64; }
                                        # to a job's coordinator: that blob of the plan (plan.capnp, Apart), from there on
    blobPiece :group { job @94 :UInt64; low @95 :UInt64; high @96 :UInt64; size @97 :UInt64; offset @98 :UInt64; bytes @99 :Data;
                       error @100 :Text; }   # answer: 512 KiB of it, or its rest; an error: it has none of that id
  }
}
