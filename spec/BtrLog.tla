------------------------------- MODULE BtrLog -------------------------------
(***************************************************************************)
(* The replication protocol of BtrLog as it is built: rules P1 to P14 of    *)
(* docs/PROTOCOL.md for one log, with the contents of records, ensemble     *)
(* changes, restarts, wiped and damaged disks, an archive and takeovers.    *)
(* README.md maps each action to its rule and to its Go function, and says  *)
(* what is left out.                                                        *)
(*                                                                         *)
(* The network loses, delays, duplicates and reorders. There is no message  *)
(* bag: a request that was sent once may arrive at any later time, as often *)
(* as it likes, so its arrival is an action that is enabled from the moment *)
(* in which it could first be sent; a loss is an action that is not taken.  *)
(* Answers are kept with the epoch that asked (op[e].rep, .ack, .aack), and *)
(* every decision is taken on any subset of them: those that arrived.       *)
(* A client that dies is one that takes no further action.                  *)
(*                                                                         *)
(* The value of a record is the epoch of the writer that gave out its LSN,  *)
(* which makes all records that could be confused differ. Zero is none.     *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Node,       \* the nodes, interchangeable
  N, Qw,      \* size of an ensemble, and its write quorum
  MaxEpoch, MaxLSN,
  MaxCrash, MaxWipe, MaxDamage,  \* how often each may happen in a behaviour
  Change,     \* may an open install other nodes or incarnations (P11)?
  Live,       \* may a live writer re-open its own log (P10)?
  Archive,    \* may nodes flush, look at the archive and drop?
  Snapshot,   \* and write what is above their watermark (P12)?
  Split,      \* does time pass between the plan of a flush and its PUT?
  Mutant      \* the rule that is broken, by name; "none"

VARIABLES
  tok,   \* the log's record: its epoch (P1). Ensemble and history are op[e].tgt and op[e].B of the installed e
  op,    \* [Epoch -> what the opener and writer of the epoch have done]
  nd,    \* [Node -> what the node holds on its disk]
  obj,   \* the objects of the archive
  com,   \* history variable: the committed records, LSN by LSN
  used   \* crashes, wipes and damages so far

vars == <<tok, op, nd, obj, com, used>>

Qr    == N - Qw + 1
LSN   == 1..MaxLSN
Epoch == 1..MaxEpoch
Inc   == Node \X (0..MaxWipe)          \* incarnations of nodes
M(m)  == Mutant = m

ASSUME /\ N <= Cardinality(Node) /\ Qw \in 1..N
       /\ MaxEpoch \in Nat \ {0} /\ MaxLSN \in Nat \ {0}

Max(S)    == CHOOSE m \in S : \A k \in S : k <= m
Min(a, b) == IF a < b THEN a ELSE b
Nodes(E)  == {i[1] : i \in E}

-----------------------------------------------------------------------------
(* The log's record. *)

Installed(e) == op[e].ph \in {"inst", "open"}
RecHist      == {e \in Epoch : Installed(e)}
Last         == Max(RecHist)
\* The record that the opener of e read when it took its token: no older epoch can be installed after that (P7).
ReadHist(e)  == {h \in 1..(e - 1) : Installed(h)}
RecEns(e)    == op[Max(ReadHist(e))].tgt
\* The history that Activate(e) carries.
Hist(e)      == IF e = 0 THEN {} ELSE ReadHist(e) \cup {e}
Start(e)     == op[e].B + 1

\* P8. History.Void
Void(H, l, x) ==
  IF M("H6") THEN LET o == {h \in H : Start(h) <= x} IN o /= {} /\ l /= Max(o)
             ELSE \E h \in H : h > l /\ Start(h) <= x

-----------------------------------------------------------------------------
(* Nodes. A copy is <<LSN, label, value>>. *)

Me(n)         == <<n, nd[n].inc>>
Gone(i)       == nd[i[1]].inc /= i[2]
At(C, x)      == {c \in C : c[1] = x}
Best(C, x)    == CHOOSE c \in At(C, x) : \A d \in At(C, x) : d[2] <= c[2]
InTarget(n, e) == IF M("X9") THEN n \in Nodes(op[e].tgt) ELSE Me(n) \in op[e].tgt

Blank(k) == [inc |-> k, prom |-> 0, act |-> 0, clsn |-> 0, arch |-> 0, cop |-> {}, dmg |-> {}, plan |-> {}]

NoOp == [ph |-> "none", tgt |-> {}, lv |-> 0, gv |-> 0, B |-> 0, T |-> 0, fl |-> 0, tail |-> [x \in LSN |-> 0], cp |-> {},
         rep |-> {}, ack |-> [x \in LSN |-> {}], aack |-> {}, wcl |-> 0, short |-> FALSE]

\* The log was created and opened by the writer of epoch 1, which Qw nodes or more have activated.
Init ==
  /\ tok = 1
  /\ obj = {}
  /\ com = <<>>
  /\ used = [c |-> 0, w |-> 0, d |-> 0]
  /\ \E E \in {F \in SUBSET Node : Cardinality(F) = N} : \E A \in SUBSET E :
       /\ Cardinality(A) >= Qw
       /\ nd = [n \in Node |-> IF n \in A THEN [Blank(0) EXCEPT !.prom = 1, !.act = 1] ELSE Blank(0)]
       /\ op = [e \in Epoch |-> IF e = 1 THEN [NoOp EXCEPT !.ph = "open", !.tgt = E \X {0}, !.gv = 1] ELSE NoOp]

-----------------------------------------------------------------------------
(* Takeover: the client's side. *)

\* P10, and the rule that tokens of a live re-open follow each other: the epoch whose LSNs a live writer brings along.
LiveBases(e) ==
  IF M("TokenGap") THEN {b \in 1..(e - 1) : op[b].ph = "open"}
  ELSE IF op[e - 1].ph = "open" THEN {e - 1}
  ELSE {op[e - 1].lv} \ {0}

\* P1, P11: the token, by compare-and-swap; the target is chosen with it.
TakeToken ==
  /\ tok < MaxEpoch
  /\ LET e == tok + 1 IN
     \E t \in {RecEns(e)} \cup (IF Change THEN {{Me(n) : n \in F} : F \in {G \in SUBSET Node : Cardinality(G) = N}} ELSE {}) :
     \E b \in {0} \cup (IF Live THEN LiveBases(e) ELSE {}) :
       /\ tok' = e
       /\ op' = [op EXCEPT ![e] = [NoOp EXCEPT !.ph = "fence", !.tgt = t, !.lv = b,
                                     !.gv = IF b = 0 THEN e ELSE IF M("P10") THEN 10 + e ELSE op[b].gv],
                           \* what an epoch that cannot be installed any more would only count is forgotten
                           ![tok].rep = IF op[tok].ph = "rep" THEN {} ELSE @,
                           ![tok].ack = IF op[tok].ph = "rep" THEN NoOp.ack ELSE @]
  /\ UNCHANGED <<nd, obj, com, used>>

Knowing(e) == {r \in op[e].rep : IF M("P4") THEN r.n \in Nodes(RecEns(e)) ELSE <<r.n, r.k>> \in RecEns(e)}

\* P5: what the answers S say. Fetching the bytes is part of it: copies of one LSN and label are equal (LabelUnique).
Decision(e, S) ==
  LET H       == ReadHist(e)
      b       == Max({r.b : r \in S} \cup {0} \cup (IF M("H2") THEN {} ELSE {op[h].B : h \in H}))
      held(x) == {c \in UNION {r.held : r \in S} : c[1] = x /\ ~Void(H, c[2], x)}
      no(x)   == Cardinality({r \in S : (x \notin r.dmg \/ M("P3")) /\ ~\E c \in r.held : c[1] = x /\ ~Void(H, c[2], x)})
      in(x)   == held(x) /= {} /\ ~(M("X1") /\ no(x) >= Qr)
      ends    == {t \in b..MaxLSN : (\A x \in (b + 1)..t : in(x)) /\ (t = MaxLSN \/ ~in(t + 1))}
      t       == Max(ends)
  IN [b |-> b, t |-> t, fl |-> Max({r.arch : r \in S}),
      ok |-> t >= MaxLSN \/ no(t + 1) >= Min(Qr, Cardinality(S)),
      tail |-> [x \in LSN |-> IF x \in (b + 1)..t THEN Best(held(x), x)[3] ELSE 0]]

\* What the second half of P6 may copy: the best copy that each answer names.
Copies(e, S, fl, b) ==
  LET good(r) == {c \in r.held : c[1] \in (fl + 1)..b /\ ~Void(ReadHist(e), c[2], c[1])}
  IN UNION {{c \in good(r) : c = Best(good(r), c[1])} : r \in S}

\* What an answer is still needed for, once the tail is decided.
Slim(e, r, copying, fl, b) ==
  [r EXCEPT !.b = 0, !.dmg = {}, !.arch = IF copying THEN Min(r.arch, b) ELSE 0,
            !.held = IF copying THEN {c \in r.held : c[1] \in (fl + 1)..b /\ ~Void(ReadHist(e), c[2], c[1])} ELSE {}]

MustCopy(e) == op[e].tgt /= RecEns(e) /\ ~M("H3")

Decide(e) ==
  /\ op[e].ph = "fence"
  /\ \E S \in SUBSET Knowing(e) :
       /\ Cardinality(S) >= (IF M("X2") THEN Qr - 1 ELSE Qr)
       /\ LET d == Decision(e, S)
              all == op[e].rep
          IN /\ d.ok
             /\ op' = [op EXCEPT ![e].ph = "rep", ![e].B = d.b, ![e].T = d.t, ![e].tail = d.tail, ![e].fl = d.fl,
                                 ![e].cp = IF MustCopy(e) THEN Copies(e, all, d.fl, d.b) ELSE {},
                                 ![e].rep = IF tok = e THEN {Slim(e, r, MustCopy(e), d.fl, d.b) : r \in all} ELSE {}]
  /\ UNCHANGED <<tok, nd, obj, com, used>>

\* The answers that came later may know more of the archive than those that decided.
Floor(e) ==
  IF M("H7") /\ obj /= {} THEN op[e].B
  ELSE Max({op[e].fl} \cup {Min(r.arch, op[e].B) : r \in Knowing(e)})

\* P6: the node has promised and holds all that was written.
Full(e, i) ==
  \E r \in op[e].rep :
    /\ <<r.n, r.k>> = i
    /\ M("P6") \/ \A x \in (op[e].B + 1)..op[e].T : i \in op[e].ack[x]
    /\ MustCopy(e) => \A x \in (Floor(e) + 1)..op[e].B : i \in op[e].ack[x] \/ At(r.held, x) /= {}

Extend(c, e, upto) == IF op[e].B > Len(c) THEN c ELSE [x \in 1..Max({upto, Len(c)}) |-> IF x <= Len(c) THEN c[x] ELSE op[e].tail[x]]

\* P7: the compare-and-swap that puts the epoch on record. With it [R, T] is committed.
Install(e) ==
  /\ tok = e /\ op[e].ph = "rep"
  /\ Cardinality({i \in op[e].tgt : Full(e, i)}) >= Qw
  /\ op' = [op EXCEPT ![e].ph = "inst", ![e].rep = {}, ![e].short = op[e].T < Len(com),
                      ![e].ack = [x \in LSN |-> IF x \in (op[e].B + 1)..op[e].T THEN Inc ELSE {}]]
  /\ com' = Extend(com, e, op[e].T)
  /\ UNCHANGED <<tok, nd, obj, used>>

\* P7: the writer is open when Qw have activated.
OpenDone(e) ==
  /\ op[e].ph = "inst"
  /\ Cardinality(op[e].aack) >= Qw
  /\ op' = [op EXCEPT ![e].ph = "open", ![e].wcl = op[e].T, ![e].aack = {}]
  /\ UNCHANGED <<tok, nd, obj, com, used>>

\* P9: in order, by the acknowledgements of Qw recorded incarnations.
Commit(e) ==
  /\ op[e].ph = "open"
  /\ \E x \in LSN : /\ IF M("P9") THEN x > op[e].wcl ELSE x = op[e].wcl + 1
                    /\ op[e].ack[x] = Inc
                    /\ op' = [op EXCEPT ![e].wcl = x]
  /\ UNCHANGED <<tok, nd, obj, com, used>>

-----------------------------------------------------------------------------
(* Nodes: requests. Each step is durable before its answer exists (P14). *)

Answer(n) ==
  LET s == nd[n] IN
  [n |-> n, k |-> s.inc, arch |-> s.arch,
   b    |-> Max({s.clsn, s.arch, IF s.act = 0 \/ M("H2") THEN 0 ELSE op[s.act].B}),
   held |-> {c \in s.cop : c[1] > s.arch},
   dmg  |-> {x \in s.dmg : x > s.arch}]

\* P2: promise and answer. A repeated Open is answered anew; the opener takes one answer from each incarnation.
NodeOpen(n, e) ==
  /\ op[e].ph \in {"fence", "rep"}
  /\ n \in Nodes(RecEns(e) \cup op[e].tgt)
  /\ nd[n].prom <= e
  /\ LET mine   == {r \in op[e].rep : r.n = n /\ r.k = nd[n].inc}
         counts == Me(n) \in RecEns(e) \cup op[e].tgt \/ M("P4")
         a      == Answer(n)
         fence  == op[e].ph = "fence"
         rep    == CASE ~counts -> op[e].rep
                     [] fence -> (op[e].rep \ mine) \cup {a}
                     [] ~fence /\ tok = e /\ mine = {} -> op[e].rep \cup {Slim(e, a, MustCopy(e), op[e].fl, op[e].B)}
                     [] OTHER -> op[e].rep
         cp     == IF counts /\ ~fence /\ mine = {} /\ MustCopy(e)
                     THEN op[e].cp \cup Copies(e, {a}, op[e].fl, op[e].B) ELSE op[e].cp
     IN /\ nd[n].prom < e \/ rep /= op[e].rep \/ cp /= op[e].cp
        /\ op' = [op EXCEPT ![e].rep = rep, ![e].cp = cp]
        /\ nd' = [nd EXCEPT ![n].prom = IF M("P2read") THEN @ ELSE e]
  /\ UNCHANGED <<tok, obj, com, used>>

\* A node that answered is asked again what the archive holds when committed LSNs are not found.
NoteArchived(n, e) ==
  /\ op[e].ph = "rep" /\ tok = e /\ MustCopy(e)
  /\ nd[n].prom = e
  /\ \E r \in op[e].rep :
       /\ r.n = n /\ r.k = nd[n].inc /\ r.arch < Min(nd[n].arch, op[e].B)
       /\ op' = [op EXCEPT ![e].rep = (@ \ {r}) \cup {[r EXCEPT !.arch = Min(nd[n].arch, op[e].B)]}]
  /\ UNCHANGED <<tok, nd, obj, com, used>>

Promised(n, e) == nd[n].prom = e \/ (M("P2read") /\ nd[n].prom < e)

Acked(e, x, n) == IF op[e].ph = "rep" /\ tok = e THEN op[e].ack[x] \cup {Me(n)} ELSE op[e].ack[x]

\* P6, first half: [R, T] again under the new epoch.
NodeRepair(n, e) ==
  /\ op[e].ph \in {"rep", "inst", "open"}
  /\ InTarget(n, e) /\ Promised(n, e)
  /\ \E x \in (op[e].B + 1)..op[e].T :
       LET c   == <<x, IF M("NoLabel") THEN op[e].tail[x] ELSE e, op[e].tail[x]>>
           ack == Acked(e, x, n)
       IN /\ c \notin nd[n].cop \/ ack /= op[e].ack[x]
          /\ nd' = [nd EXCEPT ![n].cop = @ \cup {c}, ![n].clsn = IF M("H12") THEN Max({@, op[e].T}) ELSE @]
          /\ op' = [op EXCEPT ![e].ack[x] = ack]
  /\ UNCHANGED <<tok, obj, com, used>>

\* P6, second half: committed records below R under the label they have.
NodeCopy(n, e) ==
  /\ op[e].ph \in {"rep", "inst", "open"}
  /\ InTarget(n, e) /\ Promised(n, e)
  /\ \E c \in op[e].cp :
       LET ack == Acked(e, c[1], n)
       IN /\ ~Void(Hist(nd[n].act), c[2], c[1])
          /\ c \notin nd[n].cop \/ ack /= op[e].ack[c[1]]
          /\ nd' = [nd EXCEPT ![n].cop = @ \cup {c}]
          /\ op' = [op EXCEPT ![e].ack[c[1]] = ack]
  /\ UNCHANGED <<tok, obj, com, used>>

\* P7: persist, void by P8 every copy, raise the watermark to B, in one step.
NodeActivate(n, e) ==
  /\ IF M("H1") THEN op[e].ph \in {"rep", "inst", "open"} ELSE Installed(e)
  /\ InTarget(n, e)
  /\ nd[n].prom <= e
  /\ LET dead(c) == IF M("H8") THEN c[2] < e /\ c[1] >= Start(e) ELSE Void(Hist(e), c[2], c[1])
         keep == {c \in nd[n].cop : IF nd[n].act < e THEN ~dead(c) ELSE ~(M("X10") /\ c[1] >= Start(e))}
         aack == IF op[e].ph = "inst" THEN op[e].aack \cup {Me(n)} ELSE op[e].aack
     IN /\ nd[n].act < e \/ aack /= op[e].aack \/ keep /= nd[n].cop
        /\ nd' = [nd EXCEPT ![n].prom = e, ![n].act = e, ![n].cop = keep, ![n].clsn = Max({@, op[e].B})]
        /\ op' = [op EXCEPT ![e].aack = aack]
  /\ UNCHANGED <<tok, obj, com, used>>

\* P2, P7: what a node takes of the writer of e.
Takes(n, e) == InTarget(n, e) /\ nd[n].act = e /\ (nd[n].prom = e \/ M("P2"))

\* P9: an append, acknowledged. A late copy of what is archived needs no room. The record is committed when Qw hold it.
NodeAppend(n, e) ==
  /\ op[e].ph = "open"
  /\ Takes(n, e)
  /\ \E x \in (op[e].T + 1)..MaxLSN :
       \E v \in {op[e].gv} \cup (IF M("P10reuse") THEN {op[e].gv + 10} ELSE {}) :
       LET c    == <<x, e, v>>
           ack  == IF op[e].ack[x] = Inc THEN Inc ELSE op[e].ack[x] \cup (IF M("P9peer") THEN op[e].tgt ELSE {Me(n)})
           full == IF Cardinality(ack) >= Qw THEN Inc ELSE ack
           op1  == [op EXCEPT ![e].ack[x] = full]
           done == {y \in Len(com)..MaxLSN : \A z \in (Len(com) + 1)..y : z > op[e].T /\ op1[e].ack[z] = Inc}
           cop  == IF x <= nd[n].arch THEN nd[n].cop ELSE nd[n].cop \cup {c}
       IN /\ M("P10reuse") => ~\E d \in nd[n].cop : d[1] = x /\ d[2] = e
          /\ cop /= nd[n].cop \/ op1 /= op
          /\ op' = op1
          /\ nd' = [nd EXCEPT ![n].cop = cop]
          /\ com' = IF e = Last THEN [y \in 1..Max(done) |-> IF y <= Len(com) THEN com[y] ELSE op[e].gv] ELSE com
  /\ UNCHANGED <<tok, obj, used>>

\* P7, P9: the watermark, by itself or with an append, at the activated epoch only.
NodeWatermark(n, e) ==
  /\ op[e].ph = "open"
  /\ Takes(n, e) \/ (M("H9") /\ InTarget(n, e) /\ nd[n].prom = e)
  /\ \E c \in LSN : c > nd[n].clsn /\ c <= op[e].wcl /\ nd' = [nd EXCEPT ![n].clsn = c]
  /\ UNCHANGED <<tok, op, obj, com, used>>

-----------------------------------------------------------------------------
(* Nodes: the archive. *)

\* The stretches of one label in from..lim, as objects. All in one is one snapshot (A3).
Stretches(n, from, lim) ==
  LET s      == nd[n]
      has(x) == At(s.cop, x) /= {}
      lab(x) == Best(s.cop, x)[2]
      first  == {x \in from..lim : has(x) /\ (x = from \/ ~has(x - 1) \/ lab(x - 1) /= lab(x))}
      end(f) == Max({t \in f..lim : \A x \in f..t : has(x) /\ lab(x) = lab(f)})
  IN {[l |-> lab(f), f |-> f, t |-> end(f), c |-> Max({f - 1, Min(s.clsn, end(f))}), r |-> [x \in f..end(f) |-> Best(s.cop, x)[3]]]
        : f \in first}

\* A2: the name of an object is all of it but its cLSN when that is below its end; the first of a name stays. An object that
\* proves all its records makes the one that proves fewer of the same superfluous.
Put(o) ==
  LET same == {p \in obj : p.l = o.l /\ p.f = o.f /\ p.t = o.t /\ p.r = o.r}
  IN IF same = {} THEN obj \cup {o} ELSE IF o.c = o.t THEN (obj \ same) \cup {o} ELSE obj

Plan(n, from, lim) ==
  \E o \in Stretches(n, from, lim) :
    IF Split THEN /\ nd[n].plan /= {o} /\ o \notin obj
                  /\ nd' = [nd EXCEPT ![n].plan = {o}]
                  /\ UNCHANGED obj
             ELSE /\ Put(o) /= obj
                  /\ obj' = Put(o)
                  /\ UNCHANGED nd

\* A2: the normal flush carries what is committed.
NodeFlush(n) ==
  /\ Archive /\ Plan(n, nd[n].arch + 1, nd[n].clsn)
  /\ UNCHANGED <<tok, op, com, used>>

\* P12: the failure snapshot carries what may be committed too, apart from what is known to be.
NodeSnapshot(n) ==
  /\ Archive /\ Snapshot /\ Plan(n, Max({nd[n].arch, nd[n].clsn}) + 1, MaxLSN)
  /\ UNCHANGED <<tok, op, com, used>>

NodePut(n) ==
  /\ \E o \in nd[n].plan :
       LET late == Max({o.f - 1, Min(nd[n].clsn, o.t)})
       IN obj' = Put(IF M("H11") THEN [o EXCEPT !.c = late] ELSE o)
  /\ nd' = [nd EXCEPT ![n].plan = {}]
  /\ UNCHANGED <<tok, op, com, used>>

\* P3: archived-through, learned from an object, without a hole, and up to that object's own cLSN. The watermark rises with
\* it only at a node that did not miss the epoch that wrote there.
NodeLearn(n) ==
  /\ \E o \in obj :
       LET end == IF M("H4") THEN o.t ELSE Min(o.t, o.c)
       IN /\ o.f <= nd[n].arch + 1 \/ M("H4hole")
          /\ end > nd[n].arch
          /\ nd' = [nd EXCEPT ![n].arch = end, ![n].dmg = {x \in @ : x > end},
                              ![n].clsn = IF o.l <= nd[n].act \/ M("ArchClsn") THEN Max({@, end}) ELSE @]
  /\ UNCHANGED <<tok, op, obj, com, used>>

\* P13. (The window only delays this; an idle log drops it all.)
NodeDrop(n) ==
  /\ Archive
  /\ LET unproven(x) == \E o \in obj : x \in o.f..o.t
         goes(c) == c[1] <= nd[n].arch \/ (M("P13") /\ c[1] <= nd[n].clsn) \/ (M("H13") /\ unproven(c[1]))
         keep == {c \in nd[n].cop : ~goes(c)}
     IN keep /= nd[n].cop /\ nd' = [nd EXCEPT ![n].cop = keep]
  /\ UNCHANGED <<tok, op, obj, com, used>>

-----------------------------------------------------------------------------
(* Faults. *)

\* A restart. All that was acknowledged is on the disk; the watermark may fall to start - 1 (P9, P14).
Crash(n) ==
  /\ used.c < MaxCrash
  /\ LET floor == IF nd[n].act = 0 THEN 0 ELSE op[nd[n].act].B
     IN \E lost \in IF M("P14") THEN SUBSET nd[n].cop ELSE {{}} :
          LET s == [nd[n] EXCEPT !.clsn = floor, !.cop = @ \ lost, !.plan = {},
                                 !.arch = IF M("H5") THEN 0 ELSE @, !.prom = IF M("P14promise") THEN nd[n].act ELSE @]
          IN s /= nd[n] /\ nd' = [nd EXCEPT ![n] = s]
  /\ used' = [used EXCEPT !.c = @ + 1]
  /\ UNCHANGED <<tok, op, obj, com>>

\* What S6 tolerates: of no ensemble that is on record or about to be, more than Qw - 1 disks at once.
Ensembles == {op[Last].tgt} \cup (IF Installed(tok) THEN {} ELSE {op[tok].tgt})
Lost(E, x) == {i \in E : Gone(i) \/ x \in nd[i[1]].dmg}

Wipe(n) ==
  /\ used.w < MaxWipe
  /\ nd[n] /= Blank(nd[n].inc)
  /\ \A E \in Ensembles, x \in LSN : Cardinality(Lost(E, x) \cup (E \cap {Me(n)})) <= Qw - 1
  /\ nd' = [nd EXCEPT ![n] = Blank(nd[n].inc + 1)]
  /\ used' = [used EXCEPT !.w = @ + 1]
  /\ UNCHANGED <<tok, op, obj, com>>

\* P3: the copies of an LSN cannot be read any more, and the node knows that.
Damage(n) ==
  /\ used.d < MaxDamage
  /\ \E x \in LSN :
       /\ At(nd[n].cop, x) /= {}
       /\ \A E \in Ensembles : Cardinality(Lost(E, x) \cup (E \cap {Me(n)})) <= Qw - 1
       /\ nd' = [nd EXCEPT ![n].cop = @ \ At(@, x), ![n].dmg = @ \cup {x}]
  /\ used' = [used EXCEPT !.d = @ + 1]
  /\ UNCHANGED <<tok, op, obj, com>>

Next ==
  \/ TakeToken
  \/ \E e \in Epoch : \/ Decide(e) \/ Install(e) \/ OpenDone(e) \/ Commit(e)
  \/ \E e \in Epoch, n \in Node :
       \/ NodeOpen(n, e) \/ NoteArchived(n, e) \/ NodeRepair(n, e) \/ NodeCopy(n, e)
       \/ NodeActivate(n, e) \/ NodeAppend(n, e) \/ NodeWatermark(n, e)
  \/ \E n \in Node : \/ NodeFlush(n) \/ NodeSnapshot(n) \/ NodePut(n) \/ NodeLearn(n) \/ NodeDrop(n)
                     \/ Crash(n) \/ Wipe(n) \/ Damage(n)

Spec == Init /\ [][Next]_vars
=============================================================================
