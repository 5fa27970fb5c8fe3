// Package report is the result of a run: the document that scripts read
// (schema pktgen/v1), and its text for people.
//
//	Result -> WriteJSON, WriteText
//
// It knows the result types only: nothing in here measures, and nothing prints
// but to the writer it is given. All sizes are frame sizes (destination MAC
// through FCS), all rates frames or bits a second, all times ns unless the
// name says otherwise.
package report
