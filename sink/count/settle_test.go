package count

import "testing"

// TestSettleRest: a corrupt frame that nothing came after counts where its number is
// missing, and only there.
func TestSettleRest(t *testing.T) {
	st := &countStream{Next: 70, Frames: 67, Bytes: 67 * 64}
	st.Window[0], st.Window[1], st.Window[2] = 0xffffffff, 1<<32|0xfffffff5, 2<<32|0x3f // 33 and 35 are missing
	for _, d := range []struct{ Seq, Size, From uint32 }{
		{Seq: 33, Size: 64, From: 30},     // missing
		{Seq: 33, Size: 64, From: 30},     // once
		{Seq: 34, Size: 64, From: 30},     // not missing
		{Seq: 70, Size: 64, From: 69},     // beyond what came
		{Seq: 1 << 30, Size: 64, From: 5}, // anything
		{Seq: 35, Size: 1518, From: 36},   // before what came before it: a number that is damaged
	} {
		into := &st.Doubtful[st.Doubted]
		into.Seq, into.Size, into.From = d.Seq, d.Size, d.From
		st.Doubted++
	}
	if frames, octets := settleRest(st); frames != 1 || octets != 64 || st.Frames != 68 || st.Settled != st.Doubted {
		t.Errorf("%d frames of %d octets, %d in all", frames, octets, st.Frames)
	}
}
