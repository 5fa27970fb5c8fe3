package xsk

import (
	"errors"
	"fmt"
)

// ErrUnable: this backend cannot be had here; what it wraps says why, and which
// Linux has it.
var ErrUnable = errors.New("no AF_XDP")

func unable(err error) error { return fmt.Errorf("%w: %w", ErrUnable, err) }

// TooLargeError: a frame is larger than the memory of one. It is ErrUnable, too.
type TooLargeError struct {
	Frame, Max int // octets without FCS
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("frame of %d octets: AF_XDP takes up to %d", e.Frame, e.Max)
}

func (e *TooLargeError) Unwrap() error { return ErrUnable }
