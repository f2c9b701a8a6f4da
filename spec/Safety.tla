------------------------------- MODULE Safety -------------------------------
(***************************************************************************)
(* What must hold in every reachable state: S1 to S6 of docs/PROTOCOL.md on *)
(* the contents of records, and three facts that the model itself leans on. *)
(***************************************************************************)
EXTENDS BtrLog, TLC

Symmetry == Permutations(Node)

Committed(x, v) == x <= Len(com) /\ com[x] = v
Proven(x)       == \E o \in obj : x \in o.f..o.c /\ o.r[x] = com[x]
\* A member of the recorded ensemble answers with it, and the record's history does not void it.
Holds(i, x)     == LET C == nd[i[1]].cop
                   IN ~Gone(i) /\ At(C, x) /= {} /\ Best(C, x)[3] = com[x] /\ ~Void(RecHist, Best(C, x)[2], x)

\* S1: a committed record keeps its bytes and its LSN.
S1 == \A x \in 1..Len(com) : Proven(x) \/ \E i \in op[Last].tgt : Holds(i, x)

\* S2: no epoch ever had a quorum for another record under a committed LSN.
S2 == \A e \in RecHist : \A x \in (op[e].T + 1)..MaxLSN :
        (\A y \in (op[e].T + 1)..x : op[e].ack[y] = Inc) /\ x <= Len(com) => com[x] = op[e].gv

\* S3: an open that is on record has found all that was committed, nothing else, and nothing older appears behind it.
S3 == \A e \in RecHist :
        /\ ~op[e].short
        /\ op[e].B <= Len(com)
        /\ \A x \in (op[e].B + 1)..op[e].T : Committed(x, op[e].tail[x])
        /\ \A x \in (op[e].T + 1)..Len(com) : \E f \in RecHist : f >= e /\ x > op[f].T /\ com[x] = op[f].gv

\* S4: no reader returns an uncommitted or void record.
Told(h) == Max({0} \cup {op[e].wcl : e \in RecHist \cap 1..h} \cup {op[e].B : e \in RecHist \cap 1..h}
                   \cup {nd[n].clsn : n \in {m \in Node : nd[m].act <= h}})
\* One node's answer is served as it is.
S4hot == \A n \in Node : \A x \in 1..nd[n].clsn : At(nd[n].cop, x) /= {} => Committed(x, Best(nd[n].cop, x)[3])
\* A copy of any node under a watermark from elsewhere, and a history that knows the watermark's epoch.
S4raw == \A h \in RecHist : \A i \in op[h].tgt : ~Gone(i) =>
           \A c \in nd[i[1]].cop : c[1] <= Told(h) /\ ~Void(RecHist \cap 1..h, c[2], c[1]) => Committed(c[1], c[3])
\* Equal copies that a reader counts itself, at the recorded incarnations (X11).
S4tail == \A h \in RecHist : \A x \in 1..Min(Len(com) + 1, MaxLSN), l \in 1..h :
            LET have == {i \in op[h].tgt : ~Gone(i) /\ nd[i[1]].act <= h /\ At(nd[i[1]].cop, x) /= {} /\ Best(nd[i[1]].cop, x)[2] = l}
            IN Cardinality(have) >= Qw /\ ~Void(RecHist \cap 1..h, l, x) => \A i \in have : Committed(x, Best(nd[i[1]].cop, x)[3])
\* An object proves its records up to its own cLSN; above that a watermark and the record's history must (A3).
S4cold == \A o \in obj : \A x \in o.f..o.t :
            /\ x <= o.c => Committed(x, o.r[x])
            /\ \A h \in RecHist :
                 LET known == IF M("H10") THEN {e \in RecHist \cap 1..h : \E p \in obj : p.l = e} ELSE RecHist \cap 1..h
                 IN o.l <= h /\ x <= Told(h) /\ ~Void(known, o.l, x) => Committed(x, o.r[x])
S4 == S4hot /\ S4raw /\ S4tail /\ S4cold

\* S5: what a writer acknowledges is in the log, also what a live writer gave out under the epoch before.
S5 == \A e \in RecHist : op[e].ph = "open" => \A x \in 1..op[e].wcl :
        /\ x <= Len(com)
        /\ x > op[e].T => com[x] = op[e].gv
        /\ op[e].lv /= 0 /\ x > op[op[e].lv].T => com[x] = op[op[e].lv].gv

\* S6: what is committed and not archived is on as many disks as promised, those counted that are gone.
S6 == \A x \in 1..Len(com) : Proven(x) \/ Cardinality({i \in op[Last].tgt : i \in Lost(op[Last].tgt, x) \/ Holds(i, x)}) >= Qw

\* Copies of one LSN under one label are equal, wherever they are.
LabelUnique ==
  LET all == UNION {nd[n].cop : n \in Node} \cup UNION {{<<x, o.l, o.r[x]>> : x \in o.f..o.t} : o \in obj}
  IN \A c, d \in all : c[1] = d[1] /\ c[2] = d[2] => c[3] = d[3]
\* A node keeps nothing that its own history voids.
NoVoidKept == \A n \in Node : \A c \in nd[n].cop : ~Void(Hist(nd[n].act), c[2], c[1])
\* A node never speaks of more than is committed.
Modest == \A n \in Node : nd[n].clsn <= Len(com) /\ nd[n].arch <= Len(com)

TypeOK ==
  /\ tok \in Epoch /\ Len(com) <= MaxLSN
  /\ \A n \in Node : nd[n].act <= nd[n].prom /\ nd[n].prom <= tok /\ nd[n].cop \subseteq LSN \X Epoch \X (1..20)
=============================================================================
