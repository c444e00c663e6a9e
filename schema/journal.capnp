@0xb7c1e5a9d3f20846;
# What the coordinator of a job leaves to whoever coordinates it next (runtime/jobs/job_journal.hpp). Inside of
# wire.capnp's keepJournal.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::wire");

# How the training is made; the same for the whole life of a job.
struct JobRecipe {
  graph @0 :Data;             # a graph file (graph.capnp), with its loss, and how it is trained
  onFailure @1 :UInt8;        # failure_policy
  failuresMax @2 :UInt32;
  windowNs @3 :Int64;
  inVainMax @4 :UInt32;
  delayNs @5 :Int64;
  delayMaxNs @6 :Int64;
  folder @7 :Text;            # of checkpoints
  everySteps @8 :UInt64;
  everyNs @9 :Int64;
  keep @10 :UInt32;
  firstEpoch @11 :UInt32;     # that the job began with
  hasResumed @12 :Bool;       # it began with the checkpoint of resumedEpoch, resumedStep
  resumedEpoch @13 :UInt32;
  resumedStep @14 :UInt64;
  resumedWorkerSteps @15 :List(UInt64);
}

# How far it is.
struct JobJournal {
  epoch @0 :UInt32;
  coordinator @1 :UInt64;
  successors @2 :List(UInt64);          # in this order, each when those before it are gone
  workers @3 :List(UInt64);             # node of each
  shards @4 :List(UInt64);
  replicas @5 :List(UInt64);
  shardsFollowWorkers @6 :Bool;
  firstSteps @7 :List(UInt64);          # by worker
  nextLosses @8 :List(UInt64);          # by worker: the first step whose loss is not known
  fed @9 :List(UInt64);                 # by worker
  dropped @10 :List(UInt64);
  dataMessages @11 :UInt64;
  recoveries @12 :UInt64;
  checkpoints @13 :UInt64;
  lastStep @14 :UInt64;                 # where the job is to end; 0: where its training does
  startedUnixNs @15 :UInt64;
  losses @16 :List(Loss);               # that came since the journal before, oldest first
  isFinishing @17 :Bool;                # the job is to end where it has got to
  inVain @18 :UInt32;                   # coordinators that died one after the other without a step forward
  progress @19 :UInt64;                 # losses when the last one of these began
  isSuspending @20 :Bool;               # it is to end there with a checkpoint, to be resumed later
  data @21 :List(Data);                 # what nodes have read from files of their own

  struct Loss {
    step @0 :UInt64;
    worker @1 :UInt32;
    loss @2 :Float32;
  }
  struct Data { what @0 :Text; hash @1 :UInt64; node @2 :Text; }  # the node that was the first to say it
}
