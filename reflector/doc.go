// Package reflector sends test frames back to where they came from, with the
// times at which it received them and sent them back, so that the round trip and
// the far side's own delay are told apart.
//
// It also answers the Session-Senders of STAMP (RFC 8762), unauthenticated mode.
//
//	kernel block -> RX.Next -> ParseStamp -> Reflect into a TX slot -> Sent (the time) -> Commit -> Kick
package reflector
